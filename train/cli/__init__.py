"""The command line: ``python -m train``. It works on run directories and knows no hosts."""
