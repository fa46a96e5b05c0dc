"""Who takes part in an attempt when hosts are lost, back, or in reserve."""

from __future__ import annotations

import pytest

from train.gang.plan.placement import Placement, aliases, choose
from train.gang.plan.ranks import PlanError

GROUPS = {"chief": [], "worker": ["a", "b", "c"], "ps": [], "evaluator": [], "spare": ["s", "t"]}
NAMED = {"chief": ["a"], "worker": ["b", "c"], "ps": ["p"], "evaluator": ["e"]}
AWAY = "it is unreachable: no route"


def workers(placement: Placement) -> list[str]:
    return [*placement.groups["chief"], *placement.groups["worker"]]


def test_with_all_hosts_spares_stay_out() -> None:
    placement = choose(GROUPS, {})
    assert workers(placement) == ["a", "b", "c"]
    assert placement.hosts == ["a", "b", "c"]
    assert placement.left_out == {}


def test_a_spare_takes_the_place_of_a_lost_host() -> None:
    placement = choose(GROUPS, {"b": AWAY})
    assert workers(placement) == ["a", "c", "s"]
    assert placement.left_out == {"b": AWAY}


def test_a_spare_that_is_away_itself_is_passed_over() -> None:
    placement = choose(GROUPS, {"b": AWAY, "s": AWAY})
    assert workers(placement) == ["a", "c", "t"]
    assert placement.left_out == {"b": AWAY}


def test_without_a_spare_the_others_move_up() -> None:
    groups = {**GROUPS, "spare": []}
    placement = choose(groups, {"a": AWAY}, least=2)
    assert workers(placement) == ["b", "c"]


def test_a_gang_that_may_not_get_smaller() -> None:
    groups = {**GROUPS, "spare": []}
    with pytest.raises(PlanError, match=f"b: {AWAY}: 2 of 3 workers are left, the limit is all 3"):
        choose(groups, {"b": AWAY})
    with pytest.raises(PlanError, match=r"1 of 3 workers are left, the limit is 2 or more"):
        choose(groups, {"b": AWAY, "c": AWAY}, least=2)


def test_those_that_go_on_keep_their_order_and_the_rest_comes_after_them() -> None:
    first = choose(GROUPS, {"a": AWAY})
    assert workers(first) == ["b", "c", "s"]
    back = choose(GROUPS, {}, earlier=first.hosts)
    assert workers(back) == ["b", "c", "a"], "the chief of the attempt before stays the chief"
    still_away = choose(GROUPS, {"a": AWAY}, earlier=first.hosts)
    assert workers(still_away) == ["b", "c", "s"]


def test_a_spare_at_work_goes_before_one_that_is_fresh() -> None:
    placement = choose(GROUPS, {"a": AWAY}, earlier=["b", "c", "t"])
    assert workers(placement) == ["b", "c", "t"]


def test_the_first_worker_follows_a_named_chief() -> None:
    placement = choose(NAMED, {"a": AWAY}, least=1)
    assert placement.groups == {"chief": ["b"], "worker": ["c"], "ps": ["p"], "evaluator": ["e"]}


def test_parameter_servers_cannot_get_fewer() -> None:
    with pytest.raises(PlanError, match=f"p: {AWAY}: there is no spare host for a parameter"):
        choose(NAMED, {"p": AWAY}, least=1)
    placement = choose({**NAMED, "spare": ["s"]}, {"p": AWAY})
    assert placement.groups["ps"] == ["s"]
    assert workers(placement) == ["a", "b", "c"]


def test_an_evaluator_can_be_missed_in_an_elastic_gang() -> None:
    assert choose(NAMED, {"e": AWAY}, least=1).groups["evaluator"] == []
    with pytest.raises(PlanError, match="train_job_min_workers to continue without an evaluator"):
        choose(NAMED, {"e": AWAY})


def test_a_machine_under_two_names_is_warned_of() -> None:
    machines = {"a": "A", "a2": "A", "b": "B", "b2": "B", "c": "C"}
    reached = dict.fromkeys(("a", "a2"), "10.0.0.1 port 22")
    reached |= {"b": "10.0.0.2 port 22", "b2": "gpu2.lab port 22", "c": "10.0.0.3 port 22"}
    (warning,) = aliases(machines, reached)
    assert warning.startswith(
        "b and b2 are one machine under 2 names (10.0.0.2 port 22, gpu2.lab port 22), "
    )
    assert warning.endswith("give them the same ansible_host and ansible_port")
