"""The parts of the module tensorflow_venv: standard library only, Python 3.8 and newer."""
