"""Whose fault it was, by ranks, clocks and probes of ports, and which failures are tried again."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY
from train.gang.watch import causes
from train.gang.watch.causes import Failure, why_not_again
from train.gang.watch.diagnosis import Diagnosis, explain, peers_of
from train.gang.watch.outcome import failed_at, named_as_lost, root_cause
from train.gang.watch.views import Target, View, is_secondary
from train.host import ends, probe
from train.host.records import Probed


def view(task: str, *tail: str, **state: Any) -> View:
    target = Target(f"host-of-{task}", task, f"/jobs/x/{task}", "/usr/bin/python3", task, False)
    known: Any = {"phase": "running", **state}
    made = View(target, state=known)
    made.tail.extend(tail)
    return made


def fallen(task: str, *tail: str, **state: Any) -> View:
    known = {"phase": "failed", "exit_code": 1, "cause": ends.EXIT, "reason": "exited with code 1"}
    return view(task, *tail, **{**known, **state})


@pytest.mark.parametrize(
    "line",
    [
        "UnavailableError: Additional GRPC error information from remote target "
        "/job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:",
        "The following tasks are unhealthy (stopped sending heartbeats): task /job:worker/task:1",
        "TrainingError: lost contact with worker-1: UnavailableError: Socket closed",
        "TrainingError: worker-1 (10.0.0.2:12345) was unresponsive for 10 s",
    ],
)
def test_whom_a_rank_names_as_lost(line: str) -> None:
    own = "remote target /job:worker/replica:0/task:0"  # nobody is lost to itself
    assert named_as_lost([fallen("worker-0", line, own)]) == {"worker-1": 1}


def test_a_stopped_process_comes_before_a_silent_host_and_that_before_one_that_is_named() -> None:
    failed = fallen("worker-0", "TrainingError: lost contact with worker-3: UnavailableError")
    frozen, named = view("worker-1", frozen=True), view("worker-3")
    silent = view("worker-2")
    silent.trouble = "no route to host"
    views = [failed, frozen, silent, named]
    assert root_cause(views, [failed], 0.0) is frozen
    assert root_cause([failed, silent, named], [failed], 0.0) is silent
    assert root_cause([failed, named], [failed], 0.0) is named
    assert root_cause([failed, view("worker-4")], [failed], 0.0) is None


def test_of_ranks_that_all_fell_the_one_is_accused_that_the_others_lost() -> None:
    lost = "TrainingError: lost contact with {}: UnavailableError: heartbeats"
    first = fallen("worker-2", lost.format("worker-1"), ended_at=10.0)
    second = fallen("worker-0", lost.format("worker-1"), ended_at=10.1)
    third = fallen("worker-1", lost.format("worker-0"), ended_at=10.2)
    gang = [second, third, first]
    assert root_cause(gang, gang, 0.0) is third
    # Two that name one another: the first to fall could not reach the other one.
    assert root_cause([second, third], [second, third], 0.0) is third
    third.offset = -0.2  # its host's clock is ahead
    assert root_cause([second, third], [second, third], 0.0) is second


LOST = "E0000 00:00:1795281778.9 1 agent.cc:9] task /job:worker/task:0: Socket closed"


@pytest.mark.parametrize(
    ("line", "state", "secondary"),
    [
        # One that hung inside TensorFlow waited for another one.
        ("", {"cause": ends.HUNG, "exit_code": -6, "stuck_in_framework": True}, True),
        ("", {"cause": ends.HUNG, "exit_code": -6, "stuck_in_framework": False}, False),
        ("ends with another rank, asked to end", {"exit_code": 143}, True),
        ("asked to end", {"exit_code": 143}, False),
    ],
)
def test_who_fell_because_of_another_rank(line: str, state: Any, secondary: bool) -> None:
    words = f"{line}; the checkpoint of step 7 is written"
    assert is_secondary(fallen("worker-1", words, LOST, **state)) is secondary


def test_what_tensorflow_says_at_every_start_tells_nothing_of_the_end() -> None:
    chief = fallen("worker-0")
    chief.add_log(
        "I0000 00:00:1795281778.9 10254 service.cc:221] Initializing CoordinationService\n"
        "2026-11-21 17:23:01.123456: I tensorflow/core/distributed_runtime: Barrier has passed\n"
        "Traceback (most recent call last):\nValueError: a bug\n"
    )
    assert list(chief.tail) == ["Traceback (most recent call last):", "ValueError: a bug"]
    assert not is_secondary(chief)
    chief.add_log("E0000 00:00:1795281778.9 1 coordination_service.cc:9] heartbeat timed out\n")
    assert is_secondary(chief)


def test_a_outcome_says_how_long_the_others_waited_and_what_to_do() -> None:
    killed: Any = {"cause": ends.MEMORY, "exit_code": -9, "reason": "was killed"}
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
    assert (outcome.cause, outcome.step) == (ends.MEMORY, 40)


def test_silent_hosts_are_told_apart() -> None:
    silent = view("worker-1")
    silent.asked = 0.0
    outcome = failed_at([view("worker-0"), silent], silent, now=8.0)
    assert outcome.unreachable == ["host-of-worker-1"]
    assert outcome.cause == causes.UNREACHABLE


PEERS = {"worker-0": ("10.0.0.1", 12345), "worker-1": ("10.0.0.2", 12345)}


def test_where_the_ranks_are() -> None:
    cluster = {"chief": ["[fd00::2]:12345"], "worker": ["10.0.0.1:23456"]}
    assert peers_of(cluster) == {"chief-0": ("fd00::2", 12345), "worker-0": ("10.0.0.1", 23456)}


ALL = dict.fromkeys([*PEERS, "worker-2"], "open")
NOT_1: dict[str, Any] = {"reached": {**ALL, "worker-1": "timeout"}}


@pytest.mark.parametrize(
    ("probed", "task", "cause", "reason"),
    [
        ([{}, {}], None, None, ""),
        # One that does not listen yet is waited for; an address may be translated on the way.
        ([{"reached": {**ALL, "worker-1": "refused"}}, {"listening": False}], None, None, ""),
        ([{}, {"own": False}], None, None, ""),
        ([NOT_1, {"own": False}], "worker-1", causes.ADDRESS, "which has 10.0.0.9"),
        ([NOT_1, {}], "worker-1", causes.BLOCKED, "nobody reaches it at 10.0.0.2:12345 (worker-0"),
        ([{}, {}, NOT_1], "worker-1", causes.NETWORK, "by all ranks (worker-2: timeout)"),
        ([{"proxy": "http_proxy"}, {}], "worker-0", causes.PROXY, "because of http_proxy"),
    ],
)
def test_what_keeps_ranks_from_one_another(
    probed: list[dict[str, Any]], task: str | None, cause: str | None, reason: str
) -> None:
    fine = Probed(reached=ALL, listening=True, own=True, addresses=["10.0.0.9"], proxy="")
    hosts: Any = {f"worker-{index}": {**fine, **own} for index, own in enumerate(probed)}
    found = explain(hosts, PEERS)
    assert (found and found.task, found and found.cause) == (task, cause)
    assert found is None or reason in found.reason


def test_connections_are_tried_for_real() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        peers = {
            "worker-0": ("127.0.0.1", server.getsockname()[1]),
            "worker-1": ("127.0.0.1", bound.getsockname()[1]),
            "worker-2": ("no.such.host.invalid", 1),
        }
        found = probe.reach(peers, 2.0)
    assert found == {"worker-0": "open", "worker-1": "refused", "worker-2": "unresolvable"}


def test_addresses_of_this_host() -> None:
    assert probe.is_own("127.0.0.1")
    assert not probe.is_own("192.0.2.7")
    for address in probe.own_addresses():
        assert probe.is_own(address)


def test_hosts_that_cannot_look_say_nothing() -> None:
    def ask(target: Target, peers: Any) -> dict[str, Any]:
        raise OSError("gone")

    diagnosis = Diagnosis([view("worker-0").target, view("worker-1").target], PEERS, ask)
    wait_until(lambda: diagnosis.done, diagnosis)
    assert diagnosis.finding() is None


def ended(cause: str, code: int | None = None, reason: str = "", step: int | None = 40) -> Failure:
    return Failure(cause, "worker-1", code, reason, step)


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        (ended(ends.EXIT, 143), True),
        (ended(ends.EXIT, 1, "exited with code 1: UnavailableError: Socket closed"), True),
        (ended(ends.EXIT, 1, "exited with code 1: ConnectionResetError: [Errno 104]"), True),
        (ended(ends.EXIT, 1, "exited with code 1: ModuleNotFoundError: No module"), False),
        (ended(ends.EXIT, 1, "exited with code 1: ValueError: shapes"), False),
        (ended(ends.EXIT, 2), False),
        (ended(ends.DOWNLOAD, 1, step=None), False),
        (ended(ends.DOWNLOAD, 1, step=40), True),
    ],
)
def test_worth_another_try(failed: Failure, again: bool) -> None:
    why = why_not_again(failed, None, 0, 3)
    assert (not why) is again
    assert why in ("", "it would fail in the same way again")


def test_the_page_says_of_every_cause_whether_it_is_tried_again() -> None:
    page = (REPOSITORY / "docs/supervision.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|.*\| (yes|no|if .*|no, unless .*) \|$", page, re.MULTILINE)
    tried = {cause: again for names, again in rows for cause in re.findall(r"\w+", names)}
    assert set(tried) == set(causes.CAUSES)
    for cause, again in tried.items():
        assert ended(cause).again is (again == "yes") or "if" in again or "unless" in again
        assert ended(cause).remedy


def test_a_package_that_is_missing_is_named() -> None:
    reason = "exited with code 1: ModuleNotFoundError: No module named 'pandas.core'"
    assert ended(ends.EXIT, 1, reason).remedy.startswith("bring pandas: its package as in")
    assert ended(ends.EXIT, 1, "exited with code 1: KeyError").remedy.startswith("fix the script")


def test_the_same_step_twice_is_the_jobs_own_fault() -> None:
    killed = ended(ends.MEMORY, -9)
    assert why_not_again(killed, killed, 1, 3) == "it has failed at step 40 in the same way twice"
    assert why_not_again(killed, ended(ends.MEMORY, -9, step=20), 1, 3) == ""
    failed = ended(ends.INTERNAL)
    assert "at step 40 in the same way twice" in why_not_again(failed, failed, 1, 3)
    crashed = ended(ends.SIGNAL, -11, step=None)
    assert "at the start in the same way twice" in why_not_again(crashed, crashed, 1, 3)


def test_what_comes_from_outside_may_hit_the_same_step_twice() -> None:
    for failed in (ended(ends.SIGNAL, -9), ended(causes.UNREACHABLE), ended(ends.EXIT, 143)):
        assert why_not_again(failed, failed, 1, 3) == ""


def test_the_limit_is_told() -> None:
    told = why_not_again(ended(ends.SIGNAL, -9), None, 3, 3)
    assert told == "it was started again 3 times, the limit is 3 (train_job_max_restarts)"
