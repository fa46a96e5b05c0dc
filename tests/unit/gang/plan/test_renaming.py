"""A job's hosts under the names of another inventory."""

from __future__ import annotations

from typing import Any

import pytest

from train.gang.errors import UserError
from train.gang.plan import renaming
from train.gang.plan.renaming import Inventory

OLD = ("10.0.0.1", "10.0.0.2")


def manifest(**changed: Any) -> Any:
    tasks = {f"worker-{index}": host for index, host in enumerate(OLD)}
    return {
        "job": "night",
        "attempt": 2,
        "ranks": [{"task": task, "host": host, "port": 1} for task, host in tasks.items()],
        "attempts": [
            {"attempt": 1, "ranks": {"worker-0": OLD[1], "worker-1": "10.0.0.9"}},
            {"attempt": 2, "ranks": tasks},
        ],
        "results_dirs": {OLD[0]: "worker-0", OLD[1]: "worker-1", "10.0.0.9": "worker-2"},
        "rank_arguments": {OLD[1]: ["--fast"]},
        "hosts": {host: {"address": host} for host in OLD},
        **changed,
    }


def reported(task: str, place: str = "machine", **changed: Any) -> Any:
    return {
        **{"job": "night", "task": task, "attempt": 2, "place": place},
        **{"rank_dir": f"/jobs/{task}", **changed},
    }


def hosts_of(found: Any) -> dict[str, str]:
    return {rank["task"]: rank["host"] for rank in found["ranks"]}


def test_names_that_stay() -> None:
    own = manifest()
    for inventory in (
        Inventory(OLD, {OLD[0]: [reported("worker-0")], OLD[1]: []}, {}),
        Inventory(("x", "y"), {}, {"x": "10.0.0.7"}),  # the host is not known there
    ):
        assert renaming.in_names_of(own, inventory) is own


def test_all_that_is_kept_by_host_gets_the_new_names() -> None:
    ranks = {"b": [reported("worker-0")], "a": [reported("worker-1")], "c": []}
    found = renaming.in_names_of(manifest(), Inventory(list(ranks), ranks, {}))
    assert hosts_of(found) == {"worker-0": "b", "worker-1": "a"}
    assert [one["ranks"] for one in found["attempts"]] == [
        {"worker-0": "a", "worker-1": "10.0.0.9"},
        {"worker-0": "b", "worker-1": "a"},
    ]
    assert found["results_dirs"] == {"b": "worker-0", "a": "worker-1", "10.0.0.9": "worker-2"}
    assert found["rank_arguments"] == {"a": ["--fast"]}
    assert list(found["hosts"]) == ["b", "a"]


def test_one_name_may_stand_for_several_ranks() -> None:
    both = {"a": [reported("worker-0"), reported("worker-1")]}
    found = renaming.in_names_of(manifest(), Inventory(["a"], both, {}))
    assert hosts_of(found) == {"worker-0": "a", "worker-1": "a"}
    assert found["results_dirs"]["a"] == "worker-0"


def test_names_that_were_exchanged() -> None:
    ranks = {OLD[0]: [reported("worker-1")], OLD[1]: [reported("worker-0")]}
    found = renaming.in_names_of(manifest(), Inventory(OLD, ranks, {}))
    assert hosts_of(found) == {"worker-0": OLD[1], "worker-1": OLD[0]}
    assert found["results_dirs"][OLD[1]] == "worker-0"


def test_a_host_that_does_not_answer_is_known_by_its_address() -> None:
    ranks = {"a": [reported("worker-0")]}
    addresses = {"a": OLD[0], "b": OLD[1], "c": "10.0.0.3"}
    found = renaming.in_names_of(manifest(), Inventory(["a", "c", "b"], ranks, addresses))
    assert hosts_of(found) == {"worker-0": "a", "worker-1": "b"}


def test_ranks_of_one_address_that_does_not_answer_are_shared_out() -> None:
    known = manifest(hosts={host: {"address": "10.0.0.1"} for host in OLD})
    addresses = dict.fromkeys(("a", "b"), "10.0.0.1")
    found = renaming.in_names_of(known, Inventory(["a", "b"], {}, addresses))
    assert hosts_of(found) == {"worker-0": "a", "worker-1": "b"}


def test_a_rank_of_another_attempt_or_job_is_another_one() -> None:
    ranks = {"a": [reported("worker-0", attempt=1)], "b": [reported("worker-1", job="day")]}
    own = manifest()
    assert renaming.in_names_of(own, Inventory(["a", "b"], ranks, {})) is own


def test_no_host_speaks_for_another_one() -> None:
    ranks = {
        "a": [reported("worker-0", "machine-a")],
        "b": [reported("worker-1", "machine-b"), reported("worker-0", "machine-b")],
    }
    addresses = {"a": OLD[0], "b": OLD[1]}
    found = renaming.in_names_of(manifest(), Inventory(["b", "a"], ranks, addresses))
    assert hosts_of(found) == {"worker-0": "a", "worker-1": "b"}
    with pytest.raises(UserError, match="several hosts report worker-0 of job night"):
        renaming.in_names_of(manifest(), Inventory(["b", "a"], ranks, {}))
    # Two inventory hosts of one machine report the same rank.
    twice = {name: [reported("worker-0"), reported("worker-1")] for name in ("a", "b")}
    found = renaming.in_names_of(manifest(), Inventory(["a", "b"], twice, {}))
    assert hosts_of(found) == {"worker-0": "a", "worker-1": "a"}
