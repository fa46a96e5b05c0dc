"""Who takes part in an attempt when hosts are lost, back, or in reserve."""

from __future__ import annotations

from typing import Any

import pytest

from train.gang.plan.placement import aliases, choose
from train.gang.plan.ranks import PlanError

GROUPS = {"chief": [], "worker": ["a", "b", "c"], "ps": [], "evaluator": [], "spare": ["s", "t"]}
NAMED = {"chief": ["a"], "worker": ["b", "c"], "ps": ["p"], "evaluator": ["e"], "spare": []}
AWAY = "it is unreachable: no route"


SERVED = {**NAMED, "spare": ["s"]}
NO_SPARE = {**GROUPS, "spare": []}


@pytest.mark.parametrize(
    ("groups", "missing", "given", "hosts"),
    [
        (GROUPS, "", {}, "a b c"),  # with all hosts, spares stay out
        (GROUPS, "b", {}, "a c s"),
        (GROUPS, "bs", {}, "a c t"),  # a spare that is away itself
        (NO_SPARE, "a", {"least": 2}, "b c"),  # the others move up
        # Those that take part already keep their order: the chief before stays the chief.
        (GROUPS, "", {"earlier": ["b", "c", "s"]}, "b c a"),
        (GROUPS, "a", {"earlier": ["b", "c", "s"]}, "b c s"),
        (GROUPS, "a", {"earlier": ["b", "c", "t"]}, "b c t"),
        (NAMED, "a", {"least": 1}, "b c p e"),
        (NAMED, "e", {"least": 1}, "a b c p"),
        (SERVED, "p", {}, "a b c s e"),
    ],
)
def test_who_takes_part(
    groups: dict[str, list[str]], missing: str, given: dict[str, Any], hosts: str
) -> None:
    placement = choose(groups, dict.fromkeys(missing, AWAY), **given)
    assert placement["hosts"] == hosts.split()
    assert placement["left_out"] == {host: AWAY for host in missing if host not in groups["spare"]}
    assert len(placement["groups"]["chief"]) == len(groups["chief"])
    assert len(placement["groups"]["ps"]) == len(groups["ps"])


@pytest.mark.parametrize(
    ("groups", "missing", "least", "message"),
    [
        (NO_SPARE, "b", 0, f"b: {AWAY}: 2 of 3 workers are left, the limit is all 3"),
        (NO_SPARE, "bc", 2, "1 of 3 workers are left, the limit is 2 or more"),
        (NAMED, "p", 1, f"p: {AWAY}: there is no spare host for a parameter server"),
        (NAMED, "e", 0, "set train_job_min_workers to continue without an evaluator"),
    ],
)
def test_too_few_are_left(
    groups: dict[str, list[str]], missing: str, least: int, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        choose(groups, dict.fromkeys(missing, AWAY), least=least)


def test_a_machine_under_two_names_is_warned_of() -> None:
    machines = {"a": "A", "a2": "A", "b": "B", "b2": "B", "c": "C"}
    reached = dict.fromkeys(("a", "a2"), "10.0.0.1 port 22")
    reached |= {"b": "10.0.0.2 port 22", "b2": "gpu2.lab port 22", "c": "10.0.0.3 port 22"}
    (warning,) = aliases(machines, reached)
    assert warning.startswith(
        "b and b2 are one machine under 2 names (10.0.0.2 port 22, gpu2.lab port 22), "
    )
    assert warning.endswith("give them the same ansible_host and ansible_port")
