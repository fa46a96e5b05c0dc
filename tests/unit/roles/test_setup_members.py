"""playbooks/machines.yml: the machines of an inventory and their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.support.lab import REPOSITORY


def members(hosts: Mapping[str, Any]) -> list[Any]:
    """Return the machines of workers with these variables."""
    path = str(REPOSITORY / "playbooks/machines.yml")
    (play,) = DataLoader().load_from_file(path, trusted_as_template=True)
    task = play["tasks"][0]
    known = {
        "train_job_groups": {"worker": list(hosts)},
        "hostvars": hosts,
        "setup_all_roles": ["firewall"],
        **{**task["vars"], "role_defaults": {"train_job_port": 12345}},
    }
    found = Templar(DataLoader(), known).template(task["ansible.builtin.set_fact"]["setup_members"])
    return list(found)


@pytest.mark.parametrize(
    ("variables", "addresses"),
    [
        ({}, []),
        ({"ansible_host": "192.0.2.7"}, ["192.0.2.7"]),
        ({"ansible_host": "head.example.org"}, ["head.example.org"]),
        ({"ansible_host": "node-1"}, ["node-1"]),
        ({"ansible_host": "localhost"}, []),
        ({"ansible_host": "127.0.1.1"}, []),
        ({"ansible_host": "::1"}, []),
        ({"ansible_host": "localhost", "train_job_address": "192.0.2.7"}, ["192.0.2.7"]),
        ({"train_job_address": "192.0.2.7"}, ["192.0.2.7", "node-1"]),
    ],
)
def test_the_others_learn_the_address_of_a_worker_on_the_control_node(
    variables: dict[str, Any], addresses: list[str]
) -> None:
    other = {"ansible_host": "192.0.2.8", "train_job_address": "10.0.0.8"}
    own, second = members({"node-1": {"ansible_connection": "local", **variables}, "b": other})
    assert own["addresses"] == addresses
    assert second["addresses"] == ["10.0.0.8", "192.0.2.8"]


def test_ranks_of_the_control_node_without_an_address_are_one_machine() -> None:
    local = {"ansible_connection": "local"}
    (machine,) = members({"w0": local, "w1": {**local, "train_job_port": 12400}})
    assert (machine["names"], machine["addresses"]) == (["w0", "w1"], [])
    assert machine["ports"] == [12345, 12400]
