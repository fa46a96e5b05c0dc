"""The hosts of an attempt: spares, lost hosts, and machines under several names."""

from __future__ import annotations

from typing import Any

import pytest

from train.gang.errors import UserError
from train.gang.plan.placement import aliases, choose

Groups = dict[str, list[str]]

GROUPS = {"chief": [], "worker": ["a", "b", "c"], "ps": [], "evaluator": [], "spare": ["s", "t"]}
NAMED = {"chief": ["a"], "worker": ["b", "c"], "ps": ["p"], "evaluator": ["e"], "spare": []}
AWAY = "it is unreachable: no route"
SERVED = {**NAMED, "spare": ["s"]}
NO_SPARE = {**GROUPS, "spare": []}


@pytest.mark.parametrize(
    ("groups", "missing", "given", "hosts"),
    [
        (GROUPS, "", {}, "a b c"),  # without a missing host, spares are not used
        (GROUPS, "b", {}, "a c s"),
        (GROUPS, "bs", {}, "a c t"),  # one of the spares is missing, too
        (NO_SPARE, "a", {"least": 2}, "b c"),  # the others move up
        # Hosts of the previous attempt keep their order, so its chief remains the chief.
        (GROUPS, "", {"earlier": ["b", "c", "s"]}, "b c a"),
        (GROUPS, "a", {"earlier": ["b", "c", "s"]}, "b c s"),
        (GROUPS, "a", {"earlier": ["b", "c", "t"]}, "b c t"),
        (NAMED, "a", {"least": 1}, "b c p e"),
        (NAMED, "e", {"least": 1}, "a b c p"),
        (SERVED, "p", {}, "a b c s e"),
    ],
)
def test_hosts_are_chosen(groups: Groups, missing: str, given: dict[str, Any], hosts: str) -> None:
    placement = choose(groups, dict.fromkeys(missing, AWAY), **given)
    assert placement["hosts"] == hosts.split()
    assert placement["left_out"] == {host: AWAY for host in missing if host not in groups["spare"]}
    assert len(placement["groups"]["chief"]) == len(groups["chief"])
    assert len(placement["groups"]["ps"]) == len(groups["ps"])


@pytest.mark.parametrize(
    ("groups", "missing", "least", "message"),
    [
        (NO_SPARE, "b", 0, f"b: {AWAY}: the job has 2 of 3 workers left and needs all 3"),
        (NO_SPARE, "bc", 2, "the job has 1 of 3 workers left and needs at least 2"),
        (NAMED, "p", 1, f"p: {AWAY}: no spare host can replace the parameter server"),
        (NAMED, "e", 0, "set train_job_min_workers to continue without an evaluator"),
    ],
)
def test_too_few_left(groups: Groups, missing: str, least: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(groups, dict.fromkeys(missing, AWAY), least=least)


def test_a_machine_under_two_names_is_warned_of() -> None:
    addresses = {"a": "10.0.0.1", "a2": "10.0.0.1", "b": "10.0.0.2", "b2": "gpu2", "c": "10.0.0.3"}
    reached = {name: f"{address} port 22" for name, address in addresses.items()}
    (warning,) = aliases({name: name[0] for name in addresses}, reached)
    names = "(10.0.0.2 port 22, gpu2 port 22)"
    same = "b and b2 connect to the same machine at different addresses"
    assert warning.startswith(f"{same} {names}, so ")
    assert warning.endswith("set the same ansible_host and ansible_port for them")
