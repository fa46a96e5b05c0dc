"""The command line in this process: what it refuses, and the script's own help."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import REPOSITORY
from train.cli.main import build_parser, main


def ended(words: list[str]) -> Any:
    """Return the exit code of a command."""
    try:
        return main(words)
    except SystemExit as end:  # argparse's
        return end.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --script {here}/no.py", "there is no script {here}/no.py"),
        ("run --include {here}/no.py", "there is no file or folder {here}/no.py"),
        ("run --no-such-option", "train run: there is no option --no-such-option\n"),
        ("logs j --tial=3", "train logs: there is no option --tial: did you mean --tail?"),
        ("stop j k", "train stop: unexpected argument k\n"),
        ("run -i {here}/nothing", "there is no inventory {here}/nothing"),
        ("run -e noequals", "give NAME=VALUE"),
        ("run --job a/b", "'a/b' is no job id"),
        ("run -e train_job_runs_dir=/etc/passwd", "/etc/passwd"),
        ("attach j -e train_job_runs_dir=/etc/passwd", "/etc/passwd"),
        ("atach night-1", "there is no command atach: did you mean attach?"),
        ("attach", "required: JOB; `python -m train list` shows the jobs that there are"),
        ("restart nobody", "attach to job nobody first"),
        ("stop", "JOB"),
        ("stop ''", "'' is no job id: use 1 to 64 letters"),
        ("attach ''", "'' is no job id"),
        ("compare a ../b", "'../b' is no job id"),
        ("clean", "there is no limit to what is removed: give --older-than AGE or --keep N"),
        ("clean --older-than 14", "'14' is no age: give a number with s, m, h, d or w"),
        ("clean --keep -1", "the limit is 0 or more"),
        ("clean --keep few", "the limit is 0 or more"),
        ("status -- x", "status takes no arguments of a script"),
        ("run x", "unknown argument x: put the script's after --"),
    ],
)
def test_wrong_use_starts_nothing_and_leaves_nothing(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delattr("ansible_runner.run_async")
    command, *options = shlex.split(words.format(here=tmp_path))
    runs = tmp_path / "runs"
    assert ended([command, "-e", f"train_job_runs_dir={runs}", *options]) == 2
    assert said.format(here=tmp_path) in capsys.readouterr().err
    assert not runs.exists() or list(runs.iterdir()) == []


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["--version"]) == 0
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


def test_hosts_can_stand_on_the_command_line() -> None:
    args = build_parser().parse_args(["run", "--hosts", "node-1,node-2", "--hosts=node-3"])
    assert args.inventory == ["node-1,node-2,", "node-3,"]


def test_the_scripts_own_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "--help"]) == 0
    assert "usage: worker.py" in capfd.readouterr().out
    mine = ["run", "--script", str(PLAIN), "-e"]
    assert main([*mine, f"train_job_python={sys.executable}", "--", "-h"]) == 0
    assert "--asleep" in capfd.readouterr().out
    assert main([*mine, "train_job_python=/no/python", "--", "--help"]) == 2
    assert "this machine has no /no/python" in capfd.readouterr().err
