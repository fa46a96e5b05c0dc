"""What commands print of a job."""

from __future__ import annotations

from typing import Any

import pytest

from train.cli import playbooks
from train.cli.commands import stop_line
from train.cli.drill import Row
from train.cli.main import main

REPORT = {
    **{"was": "running", "phase": "stopped", "remaining": [7], "ended": 1, "port": 12345},
    **{"port_free": None, "gpu_memory_free": None},
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"port_free": True, "gpu_memory_free": True, "ended": 3, "remaining": []},
            "running -> stopped, 3 processes ended, 0 left, port 12345 free, GPU memory back",
        ),
        ({}, "running -> stopped, 1 process ended, 1 left"),
        ({"was": "absent"}, "no rank of the job"),
    ],
)
def test_what_became_of_a_rank_that_was_stopped(changed: dict[str, Any], line: str) -> None:
    assert stop_line({**REPORT, **changed}) == line


@pytest.mark.parametrize(("options", "shown"), [([], "no jobs\n"), (["--json"], '{"jobs": []}\n')])
def test_a_list_where_there_is_nothing(
    options: list[str],
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(playbooks, "run_playbook", lambda *_: playbooks.Outcome(code=0))
    assert main(["list", *options]) == 0
    assert capsys.readouterr().out == shown


def test_a_playbook_that_broke_off_is_no_empty_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = playbooks.Outcome(code=1, last_lines=["[ERROR]: no vault secrets found."])
    monkeypatch.setattr(playbooks, "run_playbook", lambda *_: broken)
    assert main(["list"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "broke off:\n[ERROR]: no vault secrets found." in shown.err


def test_a_row_is_well_where_nothing_went_wrong_and_nothing_is_left() -> None:
    good = Row("kill", "worker-1 on b", detected=1.04, named=True, left=0, resumed=40)
    assert good.cells == ["kill", "worker-1 on b", "1.0 s", "yes", "nothing", "step 40", "well"]
    assert good.well
    assert not Row("kill", "worker-1 on b", left=2, named=True).well
    assert not Row("kill", "worker-1 on b", left=0, named=False, trouble="worker-0: exit").well
    skipped = Row("port", "worker-1 on b", trouble="it needs root", skipped=True)
    assert skipped.cells[2] == "left out"
    assert skipped.well
