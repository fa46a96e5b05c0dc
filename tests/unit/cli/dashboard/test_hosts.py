"""The playbook that follows the hosts runs only while it is wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from train.cli import playbooks
from train.cli.ansible_options import AnsibleOptions
from train.cli.dashboard import hosts
from train.cli.playbooks import PlaybookOutcome
from train.gang.job_records import OVERVIEW_FILE


class FakePlaybook:
    """Writes an overview, and runs until it is closed, or ends with an error."""

    running: list[str] = []
    error = ""

    def __init__(self, name: str, inventory: Any, variables: dict[str, Any]) -> None:
        self.running.append(name)
        folder = Path(variables["train_job_overview_dir"])
        assert folder.stat().st_mode & 0o777 == 0o700
        listed = {"at": 1.0, "hosts": {"a": {}}, "jobs": []}
        (folder / OVERVIEW_FILE).write_text(json.dumps(listed))

    def wait(self, seconds: float) -> bool:
        return bool(self.error)

    def close(self) -> PlaybookOutcome:
        self.running.pop()
        outcome = PlaybookOutcome(code=4 if self.error else 0)
        if self.error:
            outcome.failures[self.error] = []
        return outcome


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> hosts.HostFollower:
    FakePlaybook.running, FakePlaybook.error = [], ""
    monkeypatch.setattr(playbooks, "Playbook", FakePlaybook)
    monkeypatch.setattr(hosts, "_STEP_S", 0.01)
    monkeypatch.setattr(hosts, "LINGER_S", 0.2)
    return hosts.HostFollower(AnsibleOptions(("a,",)), {})


def test_one_playbook_runs_while_a_page_is_open(follower: hosts.HostFollower) -> None:
    follower.start()
    assert FakePlaybook.running == []
    follower.keep()
    wait_until(lambda: bool(follower.listed["hosts"]), "an overview")
    follower.keep()
    assert FakePlaybook.running == ["overview.yml"]
    # What it knew may be old.
    wait_until(lambda: follower.listed == hosts.NOTHING, "the end")
    assert FakePlaybook.running == []
    follower.keep()
    wait_until(lambda: bool(FakePlaybook.running), "another start")
    follower.close()
    assert FakePlaybook.running == []


def test_an_error_is_shown_until_the_hosts_answer(follower: hosts.HostFollower) -> None:
    FakePlaybook.error = "no hosts in the inventory"
    follower.start()
    follower.keep()
    wait_until(lambda: bool(follower.error), "the error")
    assert follower.error == "no hosts in the inventory"
    follower.close()
