"""What the role's module does on a host: standard library only, Python 3.8 and newer."""
