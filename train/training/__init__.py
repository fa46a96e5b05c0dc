"""The training program: what worker.py is made of."""
