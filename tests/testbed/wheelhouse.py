"""``python -m tests.testbed.wheelhouse DIR``: the wheels from which hosts install TensorFlow.

They are those of the lock for Debian 12's Python 3.11, whatever Python runs the tests: hosts that
find them in a mounted folder need no package index.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = "3.11"


def fill_wheelhouse(folder: Path) -> bool:
    """Download the lock's wheels into ``folder``; return False where all were there before.

    Of two processes that want the same folder at once, the second waits for the first.

    Raises:
        RuntimeError: the playbook failed; the message is its output.
    """
    variables = {
        "tensorflow_wheelhouse_source": str(folder.resolve()),
        "tensorflow_wheelhouse_pythons": [PYTHON],
    }
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [str(program), "-i", "localhost,", "playbooks/wheelhouse.yml"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=REPOSITORY,
            env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stdout)
    return "changed=0" not in done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m tests.testbed.wheelhouse DIR", file=sys.stderr)
        return 2
    try:
        print("filled" if fill_wheelhouse(Path(words[0])) else "complete")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
