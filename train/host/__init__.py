"""Programs that run on the hosts: Linux, Python 3.8 or newer, standard library only.

Imports are relative. The control node imports names from here, but never the reverse.
"""
