"""Scripts of JAX that end normally or fail, without JAX: a module has its function at exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY

JAX = """
import atexit

def clean_up():
    print("waits for the others")

atexit.register(clean_up)
"""
BEGIN = """\
import atexit, os, pickle, sys, records
import jax._src.api
atexit.register(print, "own function at exit")
class Kept: pass
assert isinstance(pickle.loads(pickle.dumps(Kept())), Kept)
print(__name__, os.path.basename(__file__), sys.argv[1:], records.OF_SCRIPT)
"""


def ended(folder: Path, last: str, *words: str) -> subprocess.CompletedProcess[str]:
    package = folder / "jax/_src"
    package.mkdir(parents=True)
    for path in (package / "__init__.py", package.parent / "__init__.py"):
        path.touch()
    (package / "api.py").write_text(JAX)
    (folder / "records.py").write_text("OF_SCRIPT = True\n")  # the launcher has such a module
    (folder / "main.py").write_text(BEGIN + last)
    program = REPOSITORY / "train/host/fail_at_once.py"
    return subprocess.run(
        [sys.executable, str(program), *(words or ("main.py", "--lr", "1"))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


BEGUN = "__main__ main.py ['--lr', '1'] True\n"
OWN = "own function at exit\n"
WAITS = "waits for the others\n"


@pytest.mark.parametrize("last", ["", "sys.exit()", "sys.exit(0)"])
def test_a_script_that_succeeds_exits_like_any_other(last: str, tmp_path: Path) -> None:
    done = ended(tmp_path, last)
    assert (done.returncode, done.stdout, done.stderr) == (0, BEGUN + OWN + WAITS, "")


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('bad data')", 1, "bad data\n"),
        ("sys.exit(256 + 7)", 7, ""),
        ("os._exit(4)", 4, ""),
    ],
)
def test_a_script_that_fails_does_not_wait(last: str, code: int, said: str, tmp_path: Path) -> None:
    done = ended(tmp_path, last)
    assert (done.returncode, done.stderr) == (code, said)
    assert WAITS not in done.stdout


def test_an_exception_is_shown_as_without_the_wrapper(tmp_path: Path) -> None:
    done = ended(tmp_path, "def train():\n    raise KeyError('step')\ntrain()\n")
    assert (done.returncode, done.stdout) == (1, BEGUN + OWN)
    bare = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == bare.stderr
    assert "in train" in done.stderr


def test_a_module_is_run_from_the_working_directory(tmp_path: Path) -> None:
    done = ended(tmp_path, "raise ValueError(1)\n", "-m", "main", "--lr", "1")
    assert (done.returncode, done.stdout) == (1, BEGUN + OWN)
    assert done.stderr.splitlines()[1].endswith('main.py", line 7, in <module>')
