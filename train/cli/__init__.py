"""The command line, ``python -m train``: works on run folders, and never connects to a host."""
