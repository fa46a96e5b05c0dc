"""What a supervisor passes to its script and notes, and what becomes of a rank without it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import bare_ranks
from tests.support.lease_ranks import PORT
from tests.unit.host.conftest import KILLED, run
from train.host import (
    processes,
    rank_files,
    ranks,
    supervisor,
)


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("$TRAIN_MODEL_DIR", "/m"),
        ("--out=${TRAIN_MODEL_DIR}/x", "--out=/m/x"),
        ("$TRAIN_MODEL_DIR/$TRAIN_JOB", "/m/j"),
        ("$TRAIN_MODEL_DIRS", "$TRAIN_MODEL_DIRS"),
        ("$TRAIN_SECRET ${TRAIN_} $HOME ~ $$ \\$x", "$TRAIN_SECRET ${TRAIN_} $HOME ~ $$ \\$x"),
        ("{{ TRAIN_JOB }}", "{{ TRAIN_JOB }}"),
    ],
)
def test_the_launchers_variables_in_arguments(word: str, expanded: str) -> None:
    environment = {"TRAIN_MODEL_DIR": "/m", "TRAIN_JOB": "j", "TRAIN_SECRET": "s", "HOME": "/h"}
    assert supervisor.expand(word, environment) == expanded


CONSOLE = {"source": "console", "phase": "training"}
#: A supervisor's notes on a full disk, and the end of its process.
NOTING = """
import os, sys
from train.host import json_files, progress_records, supervisor

def full(*_, **__):
    raise OSError(28, "No space left on device")

if sys.argv[2:]:
    sys.stderr = open(sys.argv[2], "w")  # of Python 3.8: it has a buffer
rank = supervisor.Supervisor(sys.argv[1])
json_files.write_json = progress_records.ProgressWriter._append = full
rank._console.feed = lambda data: [{"phase": "training"}]
rank._leases.renew()
rank._leases.release()
rank._save()
rank._keep_stacks(0)
rank._read_console()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("glibc 2.36", (2, 36)), ("", (0,)), (None, (0,)), (OSError(22, "Invalid argument"), (0,))],
)
def test_the_version_of_another_c_library_is_unknown(
    answer: str | OSError | None, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confstr(name: str) -> str | None:
        if isinstance(answer, OSError):  # musl
            raise answer
        return answer

    monkeypatch.setattr(os, "confstr", confstr)
    assert supervisor.glibc() == expected


def test_the_watchdog_leaves_the_state_to_a_stop(rank_dir: Path) -> None:
    before = bare_ranks.state(rank_dir)
    (rank_dir / ranks.STOP_FILE).write_text("{}")
    done = run(KILLED, rank_dir, json.dumps(before), stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert processes.start_time(int(done.stdout)) is None, "what is left is ended nevertheless"
    assert bare_ranks.state(rank_dir) == before


def test_what_a_supervisor_notes_is_written_at_once_or_lost(tmp_path: Path) -> None:
    """The supervisor has a problem with each of its files."""
    (tmp_path / "leases").write_text("in the way")
    noted = {"created_at": 1.0, "folder": str(tmp_path / "leases"), "resources": PORT}
    troubled = bare_ranks.stage(tmp_path, "worker-0", Path(__file__), leases=noted)
    (troubled / rank_files.STACKS_FILE).mkdir()
    with open("/dev/full", "wb") as full:
        assert run(NOTING, troubled, stderr=full).returncode == 0
    assert run(NOTING, troubled, tmp_path / "log").returncode == 0
    log = (tmp_path / "log").read_text()
    for name in (rank_files.STATE_FILE, rank_files.STACKS_FILE, rank_files.PROGRESS_FILE):
        assert f"cannot write {name}: [Errno" in log
    assert "the rank is running without leases: " in log


@pytest.mark.parametrize(
    ("records", "makes_steps"),
    [
        ([{"step": 1}, {"step": 2}], True),
        ([{"step": 1}, {"step": 1}], False),
        ([{**CONSOLE, "step": 1}, {**CONSOLE, "step": 2}], False),
        ([{**CONSOLE, "step": step, "loss": 0.5} for step in (1, 2)], True),
        ([{**CONSOLE, "step": step, "epoch": 1} for step in (1, 2)], True),
        ([{**CONSOLE, "step": step, "batch": step} for step in (1, 2)], True),
        ([{**CONSOLE, "step": 1}, {**CONSOLE, "step": 2, "loss": 0.5}], False),
    ],
)
def test_which_records_show_that_a_rank_makes_steps(
    records: list[Any], makes_steps: bool, tmp_path: Path
) -> None:
    """A loop that may as well prepare data does not."""
    rank = supervisor.Supervisor(str(bare_ranks.stage(tmp_path, "worker-0", Path(__file__))))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    Path(rank._path(rank_files.PROGRESS_FILE)).write_text(lines)
    rank._read_progress(1.0)
    assert rank._makes_steps is makes_steps
