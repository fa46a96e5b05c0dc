"""What the module ``firewall`` does on a host: standard library only, Python 3.8 and newer."""
