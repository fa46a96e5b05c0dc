"""``python -m tests.testbed.wheelhouse DIR``: the wheels from which hosts install TensorFlow.

They are those of the lock for Debian 12's Python 3.11, whatever Python runs the tests: hosts that
find them in a mounted folder need no package index.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ansible.errors import AnsibleActionFail

from roles.tensorflow.control import wheels

LOCK = Path(__file__).resolve().parents[2] / "roles/tensorflow/files/cpu.txt"
PYTHON = "3.11"


def fill_wheelhouse(folder: Path) -> bool:
    """Download the lock's wheels into ``folder``; return False where all were there before.

    Raises:
        AnsibleActionFail: pip failed; the message says why.
    """
    return bool(wheels.fill(folder, [LOCK], [PYTHON]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m tests.testbed.wheelhouse DIR", file=sys.stderr)
        return 2
    try:
        print("filled" if fill_wheelhouse(Path(words[0])) else "complete")
    except AnsibleActionFail as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
