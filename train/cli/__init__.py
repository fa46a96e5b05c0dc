"""The command line, ``python -m train``. It runs playbooks, and never connects to a host itself."""
