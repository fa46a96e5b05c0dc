"""The training program: the modules behind worker.py."""
