"""Whose fault it was, by the words and clocks of the ranks and by what their hosts reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_views import fallen, view
from train.gang import cause_names
from train.gang.watch.outcome import (
    GangOutcome,
    failed_at,
    first_of,
    leaving,
    named_by,
    neither_at_fault,
    result_of,
    stuck,
    who_lost_contact,
)
from train.host import end_causes
from train.host.progress_records import Progress


@pytest.mark.parametrize(
    "line",
    [
        "UnavailableError: Additional GRPC error information from remote target "
        "/job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:",
        "The following tasks are unhealthy (stopped sending heartbeats): task /job:worker/task:1",
        "INTERNAL: Barrier failed because: task is set to ERROR: UNAVAILABLE: Task 1 heartbeat "
        "timeout. This indicates that the remote task has failed",
        "UNAVAILABLE: /job:jax_worker/replica:0/task:1 heartbeat timeout: remote target "
        "/job:jax_worker/replica:0/task:1",
        "TrainingError: lost contact with worker-1: UnavailableError: Socket closed",
        "TrainingError: worker-1 (10.0.0.2:12345) was unresponsive for 10 s",
    ],
)
def test_whom_a_rank_names_as_lost(line: str) -> None:
    own = "remote target /job:worker/replica:0/task:0"  # a rank cannot have lost itself
    assert named_by(fallen("worker-0", line, own)) == {"worker-1"}


def test_a_rank_may_name_several_others() -> None:
    line = "TrainingError: lost contact with worker-1, worker-2: UnavailableError: gone"
    assert named_by(fallen("worker-0", line)) == {"worker-1", "worker-2"}


def test_a_stopped_process_comes_before_an_unresponsive_host() -> None:
    failed = fallen("worker-0", "TrainingError: lost contact with worker-3: UnavailableError")
    frozen, named = view("worker-1", frozen=True), view("worker-3")
    unresponsive = view("worker-2")
    unresponsive.error = "no route to host"
    assert stuck([failed, frozen, unresponsive, named], 0.0) is frozen
    assert stuck([failed, unresponsive, named], 0.0) is unresponsive
    assert stuck([failed, named], 0.0) is None
    named.error = "no route to host"
    assert stuck([failed, unresponsive, named], 0.0) is named


def lost(task: str) -> str:
    return f"TrainingError: lost contact with {task}: UnavailableError: heartbeats"


def paths(tasks: Iterable[str]) -> set[tuple[str, str]]:
    return set(itertools.permutations(tasks, 2))


DIRECTIONS = ("in", "out", "both")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("size", [3, 4])
def test_a_rank_that_is_cut_off_is_named_whoever_ends_first_and_whatever_they_say(
    size: int, direction: str
) -> None:
    tasks = [f"worker-{index}" for index in range(size)]
    for victim, order in itertools.product(tasks, itertools.permutations(tasks)):
        to = {(task, victim) for task in tasks if task != victim}
        away = {(target, source) for source, target in to}
        broken = {"in": to, "out": away, "both": to | away}[direction]
        healthy = next(task for task in tasks if task != victim)
        for says in (healthy, victim, order[0]):
            ends = {task: 10.0 + order.index(task) for task in tasks}
            gang = [fallen(task, lost(says), ended_at=ends[task]) for task in tasks]
            for failed in (gang, [one for one in gang if one.target.task == order[0]]):
                found = who_lost_contact(gang, failed, paths(tasks), broken)
                assert found is not None
                assert found.view is not None
                assert found.view.target.task == victim, (order, says, found)


@pytest.mark.parametrize("size", [3, 4])
def test_where_all_paths_are_open_again_the_words_of_most_ranks_count(size: int) -> None:
    tasks = [f"worker-{index}" for index in range(size)]
    for victim, order in itertools.product(tasks, itertools.permutations(tasks)):
        ends = {task: 10.0 + order.index(task) for task in tasks}
        for other in (task for task in tasks if task != victim):
            says = {task: other if task == victim else victim for task in tasks}
            gang = [fallen(task, lost(says[task]), ended_at=ends[task]) for task in tasks]
            found = who_lost_contact(gang, gang, paths(tasks), set())
            assert found is not None
            assert found.view is not None
            assert found.view.target.task == victim, (order, other, found)


def test_a_rank_that_ended_is_named_by_those_that_lost_it_for_that_alone() -> None:
    third = fallen("worker-2", lost("worker-1"), ended_at=10.2)
    first = fallen("worker-0", lost("worker-1"), ended_at=10.0)
    second = fallen("worker-1", lost("worker-0"), ended_at=10.4)
    fourth = fallen("worker-3", lost("worker-0"), ended_at=10.5)
    fifth = fallen("worker-4", lost("worker-0"), ended_at=10.6)
    gang = [fifth, fourth, third, second, first]
    found = who_lost_contact(gang, gang, set(), set())
    assert found is not None
    assert found.view is second


def test_a_rank_that_accuses_one_which_others_reach_is_cut_off_itself() -> None:
    accuser = fallen("worker-1", lost("worker-0"), ended_at=10.0)
    gang = [view("worker-0"), accuser, view("worker-2")]
    found = who_lost_contact(gang, [accuser], {("worker-2", "worker-0")}, set())
    assert found is not None
    assert found.view is accuser
    assert found.reason == "lost contact with worker-0, which worker-2 could still reach"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("broken", [set(), paths(["worker-0", "worker-1"])])
def test_two_that_accuse_each_other_are_both_named(first: int, broken: Any) -> None:
    ended_at = [10.0 + abs(first - index) for index in range(2)]
    gang = [fallen(f"worker-{n}", lost(f"worker-{1 - n}"), ended_at=ended_at[n]) for n in range(2)]
    found = who_lost_contact(gang, gang, paths(["worker-0", "worker-1"]), broken)
    assert found is not None
    assert found.view is None
    outcome = neither_at_fault(gang, found.reason, now=0.0, reported_by=gang[first])
    assert (outcome.root_cause, outcome.cause) == (None, cause_names.NETWORK)
    assert outcome.message.startswith(
        "worker-0 on host-of-worker-0 and worker-1 on host-of-worker-1 "
    )
    assert "each other" in outcome.message.splitlines()[0]
    assert "what to do: check the network between these hosts" in outcome.message


def test_of_two_the_one_is_named_that_fell_before_the_other_one_lost_it() -> None:
    first = fallen("worker-1", "Connection reset by peer", ended_at=10.0)
    second = fallen("worker-0", lost("worker-1"), ended_at=10.5)
    found = who_lost_contact([first, second], [first, second], set(), set())
    assert found is not None
    assert found.view is first
    first.offset = 1.0  # its host's clock is behind
    found = who_lost_contact([first, second], [first, second], set(), set())
    assert found is not None
    assert found.view is None


def test_ranks_that_name_no_other_accuse_none() -> None:
    gang = [fallen("worker-0", "Socket closed"), view("worker-1")]
    assert who_lost_contact(gang, gang[:1], set(), set()) is None


def test_metrics_of_a_result_are_those_of_the_last_whole_epoch() -> None:
    chief = view("worker-0")
    epoch: Progress = {"source": "console", "phase": "training", "batches": 9}
    chief.add_progress([{**epoch, "batch": 9, "loss": 0.7, "metrics": {"accuracy": 0.5}}])
    chief.add_progress([{**epoch, "batch": 3, "loss": 0.6, "metrics": {"accuracy": 0.6}}])
    stopped = GangOutcome("stopped", None, "it was stopped")
    assert result_of("x", stopped, [chief], 1)["metrics"] == {"accuracy": 0.5}
    assert chief.metrics == {"accuracy": 0.6}
    chief.add_progress([{"metrics": {"accuracy": 0.55}}])  # from the script itself
    assert result_of("x", stopped, [chief], 1)["metrics"] == {"accuracy": 0.55}


def test_a_outcome_says_how_long_the_others_waited_and_what_to_do() -> None:
    killed: Any = {"cause": end_causes.MEMORY, "exit_code": -9, "reason": "was killed"}
    root_cause = fallen("worker-1", "its last word", ended_at=10.0, **killed)
    other = fallen("worker-0", "UnavailableError: Socket closed", ended_at=11.4)
    other.record = {"step": 40}
    outcome = failed_at([other, root_cause], root_cause, now=0.0)
    assert outcome.message.splitlines() == [
        "worker-1 on host-of-worker-1 was killed",
        "the last step reported was 40; the others waited 1.4 s",
        "what to do: lower the batch size, or give the host or the GPU more memory",
        "its last lines:",
        "  its last word",
    ]
    assert (outcome.cause, outcome.step) == (end_causes.MEMORY, 40)


def test_unresponsive_hosts_are_told_apart() -> None:
    unresponsive = view("worker-1")
    unresponsive.asked = 0.0
    outcome = failed_at([view("worker-0"), unresponsive], unresponsive, now=8.0)
    assert outcome.unreachable == ["host-of-worker-1"]
    assert outcome.cause == cause_names.UNREACHABLE


def test_of_ranks_that_fail_by_themselves_the_first_is_named_by_clocks_that_are_set_right() -> None:
    error = "exited with code 1: ValueError: label 12"
    for order in itertools.permutations(range(3)):
        gang = [fallen(f"worker-{n}", reason=error, ended_at=10.0 + order[n]) for n in range(3)]
        assert first_of(gang).target.task == f"worker-{order.index(0)}"
        last = gang[order.index(2)]
        last.offset = -2.5  # its host's clock is ahead
        assert first_of(gang) is last


def test_when_hosts_that_got_a_notice_can_be_replaced() -> None:
    lengths = [{"seconds": 30.0}, {}, {"seconds": 900.0}]
    ranks = [view("worker-0")]
    for index, length in enumerate(lengths, 1):
        noticed = {"source": "gcp", "at": 100.0, **length}
        ranks.append(view(f"worker-{index}", preemption=noticed))
        ranks[-1].offset = 7.0  # the times are those of the control node
    assert leaving(ranks) == {
        "host-of-worker-1": {"until": 137.0, "may_be_off": False},
        "host-of-worker-2": {"until": 137.0, "may_be_off": True},
        "host-of-worker-3": {"until": 227.0, "may_be_off": True},
    }
