"""``python -m train``: see train/cli/main.py."""

import sys

from train.cli.main import main

sys.exit(main())
