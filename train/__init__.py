"""Trains TensorFlow programs on plain Linux hosts; ``python -m train --help`` shows how."""

VERSION = "0.1.0"
