"""The packages that a script needs on top of TensorFlow's: asked for, locked, and missing."""
