"""What a person types: ``python -m train``. It knows run directories, no host."""
