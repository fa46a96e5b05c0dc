"""Code of the module ``firewall`` that runs on a host.

Standard library only, Python 3.8 or newer.
"""
