"""The environment's command `train` in another folder, and its shell completion."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the command, with jobs, and with a script named like the command."""
    (tmp_path / "train.py").write_text("raise SystemExit('this is not it')\n")
    (tmp_path / "train").symlink_to(REPOSITORY / "train/cli/train")
    for job, tasks in (("night-1", ["chief-0", "worker-0"]), ("day-1", ["worker-0", "worker-1"])):
        manifest = tmp_path / "runs" / job / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"ranks": [{"task": task} for task in tasks]}))
    return tmp_path


def test_the_command_works_in_a_folder_with_another_train(folder: Path) -> None:
    done = run("./train", "run", "-i", "mine", cwd=folder)
    assert done.stderr == (
        f"python -m train run: no such inventory: {folder}/mine. To list hosts instead of "
        "naming a file, add a comma: -i HOST,\n"
    )
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("st", {"status", "stop"}),
        ("logs --ta", {"--task", "--tail"}),
        ("logs -e train_job_runs_dir=runs ", {"night-1", "day-1"}),
        ("compare -e train_job_runs_dir=runs night-1 d", {"day-1"}),
        ("logs -e train_job_runs_dir=runs night-1 --task ", {"chief-0", "worker-0"}),
        ("logs -e train_job_runs_dir=nowhere ", set()),
        ("logs -e wrong night-", set()),
        ("drill --fault f", {"freeze"}),
        ("playbook tea", {"teardown"}),
        (f"run -i {REPOSITORY}/inventory/lo", {f"{REPOSITORY}/inventory/local"}),
    ],
)
def test_a_shell_completes(typed: str, expected: set[str], folder: Path) -> None:
    line = f"train {typed}"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    command = ("bash", "-c", "exec ./train 8>&1 9>&2 >/dev/null")
    done = run(*command, cwd=folder, env={**os.environ, **asked, **shell})
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""
