"""``python -m train``: see train/control/cli.py."""

import sys

from train.control.cli import main

sys.exit(main())
