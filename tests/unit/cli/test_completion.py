"""What a shell offers: jobs, ranks and inventories."""

from __future__ import annotations

import json
import os
from argparse import Action, Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from train.cli.completion import _Completer
from train.gang import REPOSITORY


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two jobs, and files that are no jobs."""
    for number, (job, tasks) in enumerate({"day": ["chief-0"], "night": ["worker-0"]}.items()):
        manifest = tmp_path / job / "manifest.json"
        manifest.parent.mkdir()
        manifest.write_text(json.dumps({"ranks": [{"task": task} for task in tasks]}))
        os.utime(manifest, (1000 + number, 1000 + number))
    (tmp_path / "doctor").mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    return tmp_path


def offered(runs: Path, dest: str, *options: str, job: str | None = None) -> Sequence[str]:
    given = Namespace(variables=[f"train_job_runs_dir={runs}"], job=job)
    return _Completer()(action=Action([*options], dest), parsed_args=given)


@pytest.mark.parametrize("argument", ["job", "jobs", "other"])
def test_jobs_are_folders_with_a_manifest(runs: Path, argument: str) -> None:
    assert sorted(offered(runs, argument)) == ["day", "night"]


def test_the_name_of_a_new_job_is_not_completed(runs: Path) -> None:
    assert offered(runs, "job", "--job") == []


def test_ranks_are_those_of_the_job_or_of_the_newest(runs: Path) -> None:
    assert offered(runs, "task", "--task", job="day") == ["chief-0"]
    assert offered(runs, "task", "--task") == ["worker-0"]
    assert offered(runs, "task", "--task", job="unknown") == []


def test_damaged_jobs_and_other_options_offer_nothing(runs: Path) -> None:
    (runs / "day/manifest.json").write_text('{"ranks": [{"ta')
    assert offered(runs, "task", "--task", job="day") == []
    assert offered(runs, "script", "--script") == []
    wrong = Namespace(variables=["wrong"], job=None)
    assert _Completer()(action=Action([], "job"), parsed_args=wrong) == []


def test_inventories_are_relative_to_a_folder_above_them(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["-i", "--inventory"]
    monkeypatch.chdir(REPOSITORY)
    assert "inventory/local" in offered(runs, "inventory", *names)
    monkeypatch.chdir(REPOSITORY / "inventory")
    assert "local" in offered(runs, "inventory", *names)
    monkeypatch.chdir(runs)
    assert str(REPOSITORY / "inventory/local") in offered(runs, "inventory", *names)
