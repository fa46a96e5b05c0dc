"""The messages of playbooks to users, and the hosts that they are about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from train.cli import playbooks
from train.cli.playbooks import Playbook, PlaybookOutcome
from train.gang import login_failures

REFUSED = login_failures.failure("refused")


def outcome_of(*events: dict[str, Any]) -> PlaybookOutcome:
    """Return the outcome after these events of ansible-runner."""
    playbook: Any = SimpleNamespace(
        _pid=None, _echoes=False, outcome=PlaybookOutcome(), _warned=set()
    )
    playbook._note_waiting = lambda line: Playbook._note_waiting(playbook, line)
    for event in events:
        Playbook._on_event(playbook, event)
    found: PlaybookOutcome = playbook.outcome
    return found


def ended(kind: str, host: str, action: str, **result: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "task_action": action, "res": result}}


def test_a_task_for_the_gang_does_not_name_the_host_that_it_ran_for() -> None:
    text = "node-3: port 12345 is in use"
    for action in ("tensorflow_ansible.cluster.gang_plan", "ansible.builtin.assert"):
        outcome = outcome_of(ended("runner_on_failed", "node-1", action, msg=text))
        assert outcome.messages == [text]


def test_hosts_with_the_same_message_are_named_together() -> None:
    hosts = ["node-1", "node-2", "node-3", "node-4"]
    events = [ended("runner_on_failed", host, "host_examine", msg="no space") for host in hosts]
    assert outcome_of(*events).messages == ["node-1, node-2 and 2 more: no space"]


def test_where_no_host_answers_only_the_logins_are_reported() -> None:
    hosts = ["node-1", "node-2"]
    lost = [ended("runner_on_unreachable", h, "host_examine", msg=REFUSED.text) for h in hosts]
    result = {"msg": "no host answered; nothing was started", "nothing_answered": True}
    outcome = outcome_of(*lost, ended("runner_on_failed", "node-1", "gang_watch", **result))
    assert outcome.messages == [f"node-1 and node-2 are unreachable: {REFUSED.text}"]


def test_hosts_that_did_not_answer_are_named_by_reason() -> None:
    lost = {"unreachable": True, "msg": REFUSED.text}
    full = {"failed": True, "msg": "no space"}
    hosts = {"node-1": lost, "node-2": full, "node-3": full}
    failed = ended("runner_on_failed", "node-1", "gang_answers", msg="all of it", hosts=hosts)
    answered = ended("runner_on_ok", "node-1", "gang_stop", hosts={**hosts, "node-4": {"more": []}})
    outcome = outcome_of(answered, failed)
    assert outcome.messages == [
        f"node-1 is unreachable: {REFUSED.text}",
        "node-2 and node-3: no space",
    ]
    assert outcome.answers("gang_stop") == {"node-4": {"more": []}}


@pytest.mark.parametrize("action", ["gang_check", "gang_jobs", "gang_stage", "gang_states"])
def test_hosts_that_a_task_for_the_gang_cannot_reach_are_unreachable(action: str) -> None:
    lost = {"unreachable": True, "msg": REFUSED.text}
    hosts = {"node-1": lost, "node-2": {"failed": True, "msg": "no space"}, "node-3": lost}
    checked = ended("runner_on_ok", "node-1", action, hosts=hosts)
    outcome = outcome_of(checked, ended("runner_on_failed", "node-1", "gang_hosts", msg="too few"))
    assert outcome.messages == [f"node-1 and node-3 are unreachable: {REFUSED.text}", "too few"]
    assert outcome.results[action]["node-1"]["hosts"]["node-2"]["failed"]


def test_hosts_whose_login_takes_long_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [login_failures.waiting([host]) for host in ("node-1", "node-2", "node-1")]
    outcome = outcome_of(*({"event": "verbose", "stdout": f"{line}\n"} for line in lines))
    assert outcome.take_waiting() == [], "others are gathered first"
    monkeypatch.setattr(playbooks, "_TOGETHER_S", 0.0)
    assert outcome.take_waiting() == ["waiting for the login to node-1 and node-2"]
    assert outcome.take_waiting() == []
