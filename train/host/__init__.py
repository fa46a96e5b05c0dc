"""What runs on the hosts: Linux, the standard library only, Python 3.8 and newer.

Imports are relative. The control node imports names from here, nothing here from the control node.
"""
