"""The ranks of a gang: tasks, ports, and which of them train."""

from __future__ import annotations

import re
from typing import Any

import pytest

from train.gang.errors import UserError
from train.gang.plan import planned_ranks

Groups = dict[str, list[str]]


#: The facts of each host.
HOSTS: Any = {
    name: {"machine": machine, "address": address, "port": port, "tensorflow": "2.21.0"}
    for name, machine, address, port in (
        ("a", "A", "10.0.0.1", 12345),
        ("b", "B", "10.0.0.2", 12345),
        ("c", "B", "10.0.0.2", 12346),
        ("d", "D", "10.0.0.4", 12345),
    )
}


def test_the_index_is_the_place_in_the_group() -> None:
    ranks = planned_ranks.plan_ranks(
        {"worker": ["b", "a"], "chief": ["d"], "evaluator": ["c"]}, HOSTS
    )
    fields = ("host", "task", "port", "non_training", "ranks_on_machine")
    assert [tuple(dict(rank)[name] for name in fields) for rank in ranks] == [
        ("d", "chief-0", 12345, False, 1),
        ("b", "worker-0", 12345, False, 2),
        ("a", "worker-1", 12345, False, 1),
        ("c", "evaluator-0", None, True, 2),  # it opens no port
    ]


def test_workers_of_parameter_servers_are_services() -> None:
    ranks = planned_ranks.plan_ranks({"chief": ["a"], "worker": ["b"], "ps": ["c"]}, HOSTS)
    services = {rank["task"]: rank["non_training"] for rank in ranks}
    assert services == {"chief-0": False, "worker-0": True, "ps-0": True}


def test_without_a_chief_workers_of_parameter_servers_train() -> None:
    ranks = planned_ranks.plan_ranks({"worker": ["a", "b"], "ps": ["c"]}, HOSTS)
    services = {rank["task"]: rank["non_training"] for rank in ranks}
    assert services == {"worker-0": False, "worker-1": False, "ps-0": True}


def test_a_rank_alone_opens_no_port() -> None:
    assert planned_ranks.plan_ranks({"worker": ["a"]}, HOSTS)[0]["port"] is None


SAME_PORT = "b and c have the same address and port"


@pytest.mark.parametrize(
    ("groups", "changes", "message"),
    [
        ({"ps": ["a"]}, {}, "groups chief and worker are empty"),
        ({"chief": ["a", "b"], "worker": ["c"]}, {}, "at most one chief"),
        ({"worker": ["a"], "evaluator": ["b", "c"]}, {}, "at most one evaluator"),
        ({"worker": ["a", "b"], "chief": ["a"]}, {}, "host a is in the groups chief and worker"),
        ({"worker": ["b", "c"]}, {"c": {"port": 12345}}, SAME_PORT),
        ({"worker": ["b", "c"]}, {"c": {"port": 12345, "address": "other-name"}}, SAME_PORT),
        ({"worker": ["a"]}, {"a": {"tensorflow": "2.20.0"}}, "(2.20.0 on a; 2.21.0 on b, c, d)"),
    ],
)
def test_impossible_gangs(groups: Groups, changes: dict[str, dict[str, Any]], message: str) -> None:
    hosts: Any = {name: {**known, **changes.get(name, {})} for name, known in HOSTS.items()}
    with pytest.raises(UserError, match=re.escape(message)):
        planned_ranks.plan_ranks(groups, hosts)
