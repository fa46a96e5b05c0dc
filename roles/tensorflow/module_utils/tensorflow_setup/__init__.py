"""What the role's modules share: standard library only, Python 3.8 and newer."""
