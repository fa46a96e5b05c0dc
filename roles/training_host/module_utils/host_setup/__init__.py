"""What modules of several roles share on a host: standard library only, Python 3.8 and newer."""
