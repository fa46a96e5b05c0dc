"""Trains TensorFlow programs on plain Linux hosts; ``python -m train --help`` shows how."""
