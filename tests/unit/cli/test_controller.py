"""Starts of a watch on a host of the cluster, with what the playbook would report."""

from __future__ import annotations

import json
import os
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from train.cli import commands, controller, inventories, playbooks
from train.cli.ansible_options import AnsibleOptions
from train.cli.playbooks import PlaybookOutcome
from train.gang.errors import UserError

FILES = {"gang_controller": {"w0": {"host": "w0", "root": "~/train"}}}


class FakePlaybook:
    """A playbook that has ended with an outcome, or during which a signal arrives."""

    outcome = PlaybookOutcome(code=0)
    begun: list[tuple[str, dict[str, Any]]] = []
    signum = 0

    def __init__(self, name: str, options: Any, variables: Any, check: bool = False) -> None:
        self.begun.append((name, dict(variables)))

    def wait(self, seconds: float) -> bool:
        if self.signum:
            os.kill(os.getpid(), self.signum)
        return not self.signum

    def close(self, log: Path | None = None) -> PlaybookOutcome:
        return self.outcome


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakePlaybook]:
    class Fake(FakePlaybook):
        begun = []

    monkeypatch.setattr(playbooks, "Playbook", Fake)
    return Fake


def args_of(**changed: Any) -> Namespace:
    args = {"command": "run", "on": "chief", "job": "night", "detach": True, "mlflow": ""}
    args |= {"strict": False, "script": None, "arguments": ["--steps", "3"], "module": ""}
    args |= {"include": [], "requirements": "", "framework": "", "json": False}
    return Namespace(inventory=AnsibleOptions(("w0,w1,",)), **{**args, **changed})


def ended(code: int, **said: str) -> PlaybookOutcome:
    return PlaybookOutcome(code=0, results={**FILES, "command": {"w0": {"rc": code, **said}}})


def test_the_host_is_recorded_and_named(
    fake: type[FakePlaybook], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.outcome = ended(0, stderr="this machine ends your processes", stdout="detached")
    assert controller.start(args_of(), {"train_job_runs_dir": str(tmp_path)}) == 0
    ((name, variables),) = fake.begun
    assert name == "controller.yml"
    assert variables["train_job_controller"] == "chief"
    assert variables["train_job_controller_command"] == "run"
    assert variables["train_job_args"] == ["--steps", "3"]
    kept = json.loads((tmp_path / "night/connection.json").read_text())
    assert kept["controller"] == "w0"
    assert inventories.controller_of(tmp_path / "night") == "w0"
    said = capsys.readouterr().err
    assert "host w0 watches job night and restarts it" in said
    assert "w0: this machine ends your processes" in said
    assert "attach" in said


def test_without_detach_the_job_is_followed_from_here(
    fake: type[FakePlaybook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.outcome = ended(0)
    followed = []

    def attach(args: Namespace, variables: Any) -> int:
        followed.append(args.job)
        return 6

    monkeypatch.setattr(commands, "attach", attach)
    variables = {"train_job_runs_dir": str(tmp_path)}
    assert controller.start(args_of(detach=False), variables) == 6
    assert controller.start(args_of(command="attach", detach=False), variables) == 6
    assert followed == ["night", "night"]


def test_a_start_that_fails_there_leaves_nothing_here(
    fake: type[FakePlaybook], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.outcome = ended(4, stdout="job night unreachable: w1: \x1b[31mthe login failed")
    assert controller.start(args_of(), {"train_job_runs_dir": str(tmp_path)}) == 4
    said = capsys.readouterr().err
    assert "w0: job night unreachable: w1: " in said
    assert "\x1b" not in said
    assert "w0 must be able to log in to all other hosts" in said
    assert "--tags ssh_keys" in said
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_is_reported(
    fake: type[FakePlaybook], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.outcome = PlaybookOutcome(code=2, failures={"no such host": []})
    assert controller.start(args_of(), {"train_job_runs_dir": str(tmp_path)}) == 2
    assert "no such host" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "answer", "text"),
    [
        ({}, None, "nothing was started"),
        (FILES, "none", "nothing was started"),
        (FILES, "stopped", "job night was stopped"),
        (FILES, "ended", "job night may have started"),
    ],
)
def test_an_interrupted_start_is_ended_there(
    fake: type[FakePlaybook],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, Any],
    answer: str | None,
    text: str,
) -> None:
    fake.outcome, fake.signum = PlaybookOutcome(code=0, results=files), signal.SIGINT
    calls = []

    def run(name: str, _: Any, variables: Any) -> PlaybookOutcome:
        calls.append((name, variables["train_job_controller"], variables["train_job_root"]))
        return PlaybookOutcome(code=0, results={"shell": {"w0": {"stdout": answer}}})

    monkeypatch.setattr(playbooks, "run_playbook", run)
    assert controller.start(args_of(), {"train_job_runs_dir": str(tmp_path)}) == 130
    assert calls == ([("controller_cancel.yml", "w0", "~/train")] if answer else [])
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_mlflow_is_rejected() -> None:
    with pytest.raises(UserError, match="--mlflow and --on exclude each other"):
        controller.start(args_of(mlflow="http://x"), {})
