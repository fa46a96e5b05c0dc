"""Code that the role's modules share. Standard library only, Python 3.8 or newer."""
