"""``python -m tests.testbed.wheelhouse DIR``: the wheels from which hosts install TensorFlow.

They are those of the lock for Debian 12's Python 3.11, whatever Python runs the tests: hosts that
find them in a mounted folder need no package index.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCK = Path(__file__).resolve().parents[2] / "roles/tensorflow/files/cpu.txt"
#: Holds the lock's SHA-256; written when all of its wheels are there.
MARK = "lock.sha256"


def fill_wheelhouse(folder: Path) -> bool:
    """Download the lock's wheels into ``folder``, and tell whether any could be missing before.

    Of two processes that want the same folder at once, the second waits for the first.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    mark = folder / MARK
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if mark.is_file() and mark.read_text(encoding="ascii") == digest:
            return False
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--disable-pip-version-check", "--no-deps", "--require-hashes"),
                *("--only-binary", ":all:", "--requirement", str(LOCK), "--dest", str(folder)),
                *("--python-version", "3.11", "--implementation", "cp"),
                *(
                    word
                    for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)
                    for word in ("--platform", f"manylinux_2_{minor}_x86_64")
                ),
                *("--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64"),
                *("--platform", "manylinux1_x86_64", "--platform", "any"),
            ],
            check=True,
        )
        mark.write_text(digest, encoding="ascii")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder that the command line names; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m tests.testbed.wheelhouse DIR", file=sys.stderr)
        return 2
    try:
        print("filled" if fill_wheelhouse(Path(words[0])) else "complete")
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
