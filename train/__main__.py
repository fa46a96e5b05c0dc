"""``python -m train``: see train/cli/main.py."""
# PYTHON_ARGCOMPLETE_OK

import sys

from train.cli.main import main

sys.exit(main())
