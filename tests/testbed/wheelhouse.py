"""``python -m tests.testbed.wheelhouse DIR``: the wheels from which hosts install TensorFlow.

They are those of the lock for Debian 12's Python 3.11, whatever Python runs the tests: hosts that
find them in a mounted folder need no package index.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).resolve().parents[2] / "roles/tensorflow/files/cpu.txt"
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.2"}
#: What the folder holds; takes this name when all of it is there.
CONTENTS = "requirements.txt"


def requirements(lock: str) -> str:
    """Return the lines of a lock that hold for the hosts' Python, without their conditions.

    pip would judge the conditions by the Python that it runs under, also with --python-version.
    """
    lines = []
    for line in lock.replace("\\\n", " ").splitlines():
        words, *hashes = line.split(" --hash=")
        if words.strip() and not words.lstrip().startswith("#"):
            locked = Requirement(words)
            if locked.marker is None or locked.marker.evaluate(PYTHON):
                locked.marker = None
                lines.append(" ".join([str(locked), *(f"--hash={h.strip()}" for h in hashes)]))
    return "\n".join(lines) + "\n"


def fill_wheelhouse(folder: Path) -> bool:
    """Download the lock's wheels into ``folder``; return False where all were there before.

    Of two processes that want the same folder at once, the second waits for the first.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = requirements(LOCK.read_text(encoding="utf-8"))
    contents, new = folder / CONTENTS, folder / f"{CONTENTS}.new"
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if contents.is_file() and contents.read_text(encoding="utf-8") == wanted:
            return False
        new.write_text(wanted, encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--disable-pip-version-check", "--no-deps", "--require-hashes"),
                *("--only-binary", ":all:", "--requirement", str(new), "--dest", str(folder)),
                *("--python-version", PYTHON["python_version"], "--implementation", "cp"),
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
        new.replace(contents)
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
