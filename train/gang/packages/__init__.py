"""Packages that a script needs in addition to TensorFlow's: requested, locked, and missing."""
