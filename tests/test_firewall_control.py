"""The role ``firewall`` on the control node: the connection that confirms, and who is a member."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from roles.firewall.action_plugins import firewall as action
from roles.firewall.action_plugins import firewall_plan as planner
from tests.firewall_role import params


class Plugin(action.ActionModule):
    """The plugin on a host that fails to answer some times and then confirms, or does not."""

    def __init__(self, refusals: int, confirmed: dict[str, Any], check: bool = False) -> None:
        self.resets = 0
        self.states: list[str] = []
        self.refusals, self.confirmed = refusals, confirmed
        self._connection = SimpleNamespace(reset=self.count_reset)
        self._task = SimpleNamespace(args={**params(), "state": "present"}, check_mode=check)

    def count_reset(self) -> None:
        self.resets += 1

    def _call(self, args: dict[str, Any], _: Any) -> dict[str, Any]:
        self.states.append(args["state"])
        if args["state"] == "applied":
            return {"changed": True, "differences": ["other rules"]}
        self.refusals -= 1
        if self.refusals >= 0:
            raise AnsibleConnectionFailure("Connection refused")
        return self.confirmed


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.mark.usefixtures("at_once")
def test_rules_are_confirmed_over_a_new_connection() -> None:
    plugin = Plugin(0, {"changed": True, "ready": True})
    assert plugin.run() == {"changed": True, "ready": True, "differences": ["other rules"]}
    assert (plugin.resets, plugin.states) == (1, ["applied", "confirmed"])


@pytest.mark.usefixtures("at_once")
def test_check_mode_confirms_nothing() -> None:
    plugin = Plugin(0, {}, check=True)
    assert plugin.run()["changed"]
    assert (plugin.resets, plugin.states) == (0, ["applied"])


@pytest.mark.usefixtures("at_once")
def test_a_lock_out_is_told_with_its_remedy() -> None:
    plugin = Plugin(3, {"failed": True, "msg": "the new rules were taken back"})
    result = plugin.run()
    assert result["failed"]
    assert result["msg"].startswith(
        "the new rules were taken back. Ansible was told: Connection re"
    )
    assert "firewall_extra_sources" in result["msg"]
    assert plugin.resets == 4


@pytest.mark.usefixtures("at_once")
def test_a_host_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(AnsibleConnectionFailure):
        Plugin(1000, {}).run()


def test_plan() -> None:
    hosts: dict[str, dict[str, Any]] = {
        "node-1": {"ansible_host": "192.0.2.1", "train_job_address": "10.0.0.1"},
        "node-1-ps": {
            "ansible_host": "192.0.2.1",
            "train_job_address": "10.0.0.1",
            "train_job_port": 12346,
        },
        "node-2": {"train_job_port": "23456"},
        "here": {"ansible_connection": "local", "ansible_host": "localhost"},
        "stranger": {"ansible_host": "192.0.2.9"},
    }
    plan = planner.plan(["node-1", "node-1-ps", "node-2", "here"], hosts, 12345)
    assert plan == {
        "members": [["10.0.0.1", "192.0.2.1"], ["node-2"]],
        "ports": {
            "node-1": ["12345", "12346"],
            "node-1-ps": ["12345", "12346"],
            "node-2": ["23456"],
            "here": ["12345"],
        },
    }


def test_machines_behind_one_address_are_told_apart() -> None:
    hosts = {
        "a": {"ansible_host": "192.0.2.1", "ansible_port": 2201},
        "b": {"ansible_host": "192.0.2.1", "ansible_port": 2202, "train_job_port": 23456},
    }
    assert planner.plan(["a", "b"], hosts, 12345)["ports"] == {"a": ["12345"], "b": ["23456"]}


def test_a_variable_that_cannot_be_read_names_its_host() -> None:
    class Broken(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleError("'lab_address' is undefined")

    with pytest.raises(AnsibleActionFail, match="node-1: 'lab_address' is undefined"):
        planner.plan(["node-1"], {"node-1": Broken()}, 12345)
