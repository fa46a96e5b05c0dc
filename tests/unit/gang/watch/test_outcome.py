"""The rank at fault, from ranks, clocks and probes of ports, and failures that are retried."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY
from train.gang import cause_names
from train.gang.watch import causes, script_faults
from train.gang.watch.causes import Failure, why_not_again
from train.gang.watch.diagnosis import Diagnosis, explain, peers_of
from train.gang.watch.outcome import (
    GangOutcome,
    failed_at,
    first_of,
    named_by,
    neither_at_fault,
    result_of,
    stuck,
    who_lost_contact,
)
from train.gang.watch.views import Target, View, is_secondary
from train.host import ends, probe
from train.host.progress_records import Progress
from train.host.records import Probed


def view(task: str, *tail: str, **state: Any) -> View:
    target = Target(f"host-of-{task}", task, f"/jobs/x/{task}", "/usr/bin/python3", task, False)
    known: Any = {"phase": "running", **state}
    made = View(target, state=known)
    made.add_log("".join(f"{line}\n" for line in tail))
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
    own = "remote target /job:worker/replica:0/task:0"  # a rank cannot have lost itself
    assert named_by(fallen("worker-0", line, own)) == {"worker-1"}


def test_a_rank_may_name_several_others() -> None:
    line = "TrainingError: lost contact with worker-1, worker-2: UnavailableError: gone"
    assert named_by(fallen("worker-0", line)) == {"worker-1", "worker-2"}


def test_a_stopped_process_comes_before_a_silent_host() -> None:
    failed = fallen("worker-0", "TrainingError: lost contact with worker-3: UnavailableError")
    frozen, named = view("worker-1", frozen=True), view("worker-3")
    silent = view("worker-2")
    silent.error = "no route to host"
    assert stuck([failed, frozen, silent, named], 0.0) is frozen
    assert stuck([failed, silent, named], 0.0) is silent
    assert stuck([failed, named], 0.0) is None
    named.error = "no route to host"
    assert stuck([failed, silent, named], 0.0) is named


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
            for failed in (gang, [view for view in gang if view.target.task == order[0]]):
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


LOST = "E0000 00:00:1795281778.9 1 agent.cc:9] task /job:worker/task:0: Socket closed"


@pytest.mark.parametrize(
    ("line", "state", "secondary"),
    [
        # A rank that hung inside TensorFlow waited for another one.
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
    assert chief.last_line == "ValueError: a bug"
    chief.add_log("E0000 00:00:1795281778.9 1 coordination_service.cc:9] heartbeat timed out\n")
    assert is_secondary(chief)
    assert chief.last_line == "ValueError: a bug"


def test_unfinished_bars_are_no_last_lines() -> None:
    chief = view("worker-0")
    chief.add_log("Epoch 2/3\n\r3/9 [=>....] - ETA: 1s - loss: 2.2744 - accuracy: 1.4500\b\b\b\b\r")
    chief.add_log("\b\b\r      4/Unknown - 1s 9ms/step - loss: 2.2744 - accuracy: 1.4500\b\b\r")
    assert list(chief.tail) == ["Epoch 2/3"]
    chief.add_log("9/9 [======] - 1s 9ms/step - loss: 0.7581 - accuracy: 0.4833\n")
    assert "accuracy: 0.4833" in chief.last_line


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


def test_what_is_approximate_is_not_kept() -> None:
    chief = view("worker-0")
    epoch: Progress = {"source": "console", "phase": "training"}
    chief.add_progress([{**epoch, "loss": 0.7}, {**epoch, "approximate": {"loss": 0.6}}])
    assert chief.record == {**epoch, "loss": 0.7, "approximate": {"loss": 0.6}}
    chief.add_progress([{**epoch, "step": 3}])
    assert chief.record == {**epoch, "loss": 0.7, "step": 3}


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
    assert outcome.cause == cause_names.UNREACHABLE


PEERS = {f"worker-{index}": (f"10.0.0.{index + 1}", 12345) for index in range(3)}


def test_where_the_ranks_are() -> None:
    cluster = {"chief": ["[fd00::2]:12345"], "worker": ["10.0.0.1:23456"]}
    assert peers_of(cluster) == {"chief-0": ("fd00::2", 12345), "worker-0": ("10.0.0.1", 23456)}


ALL = dict.fromkeys(PEERS, "open")
NOT_1: dict[str, Any] = {"reached": {**ALL, "worker-1": "timeout"}}


OUT: dict[str, Any] = {"reached": dict.fromkeys(ALL, "timeout")}
#: Two ranks that do not reach each other, while both reach the third one.
BOTH: dict[str, Any] = {"reached": {**OUT["reached"], "worker-2": "open"}}


@pytest.mark.parametrize(
    ("probed", "task", "cause", "reason"),
    [
        ([{}, {}], None, None, ""),
        # A rank that does not listen yet is waited for. Addresses may be translated on the way.
        ([{"reached": {**ALL, "worker-1": "refused"}}, {"listening": False}], None, None, ""),
        ([{}, {"own": False}], None, None, ""),
        ([NOT_1, {"own": False}], "worker-1", cause_names.ADDRESS, "whose addresses are 10.0.0.9"),
        (
            [NOT_1, {}],
            "worker-1",
            cause_names.BLOCKED,
            "no other rank can reach it at 10.0.0.2:12345 (worker-0",
        ),
        ([{}, {}, NOT_1], "worker-1", cause_names.NETWORK, "by some ranks (worker-2: timeout)"),
        (
            [BOTH, BOTH, {}],
            None,
            cause_names.NETWORK,
            "worker-0 and worker-1 cannot reach each other",
        ),
        (
            [{}, OUT, {}],
            "worker-1",
            cause_names.NETWORK,
            "cannot reach worker-0, worker-2, although",
        ),
        (
            [NOT_1, OUT, NOT_1],
            "worker-1",
            cause_names.NETWORK,
            "is cut off: it cannot reach worker-0",
        ),
        ([OUT, OUT, OUT], "worker-0", cause_names.BLOCKED, "no other rank can reach it"),
        ([{"proxy": "http_proxy"}, {}], "worker-0", cause_names.PROXY, "because http_proxy is set"),
    ],
)
def test_what_keeps_ranks_from_one_another(
    probed: list[dict[str, Any]], task: str | None, cause: str | None, reason: str
) -> None:
    fine = Probed(reached=ALL, listening=True, own=True, addresses=["10.0.0.9"], proxy="")
    hosts: Any = {f"worker-{index}": {**fine, **own} for index, own in enumerate(probed)}
    found = explain(hosts, PEERS)
    assert (found and found.task, found and found.cause) == (task, cause), found
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
    assert why in ("", "it would fail the same way again")


def test_the_page_says_of_every_cause_whether_it_is_tried_again() -> None:
    page = (REPOSITORY / "docs/supervision.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|.*\| (yes|no|if .*|no, unless .*) \|$", page, re.MULTILINE)
    tried = {cause: again for names, again in rows for cause in re.findall(r"\w+", names)}
    assert set(tried) == set(causes.CAUSES) == cause_names.CAUSES - {ends.STOPPED}
    for cause, again in tried.items():
        assert ended(cause).again is (again == "yes") or "if" in again or "unless" in again
        assert ended(cause).remedy


def test_a_package_that_is_missing_is_named() -> None:
    reason = "exited with code 1: ModuleNotFoundError: No module named 'pandas.core'"
    assert ended(ends.EXIT, 1, reason).remedy == (
        "add pandas to requirements.txt next to the script and pass --requirements, or "
        "pass your own module with --include"
    )
    assert ended(ends.EXIT, 1, "exited with code 1: KeyError").remedy.startswith("fix the script")


def test_the_scripts_own_package_is_found_on_the_control_node(tmp_path: Path) -> None:
    script = tmp_path / "trainer" / "task.py"
    script.parent.mkdir()
    (tmp_path / "helpers.py").touch()
    (tmp_path / "trainer/deep").mkdir()

    def missing(name: str, script: str) -> str:
        reason = f"exited with code 1: ModuleNotFoundError: No module named '{name}'"
        return Failure(ends.EXIT, "worker-1", 1, reason, None, script).remedy

    by_module = "run it as part of its package: --script {} --module trainer.task"
    assert missing("trainer", str(script)) == by_module.format(tmp_path)
    assert missing("trainer", "/elsewhere/trainer/task.py") == by_module.format("/elsewhere")
    path = tmp_path / "helpers.py"
    assert missing("helpers", str(script)) == f"pass your own package with --include {path}"
    elsewhere = missing("helpers", "/elsewhere/trainer/task.py")
    assert elsewhere.startswith("add helpers to requirements.txt")


#: A message for each fault, in order, and words from its remedy.
FAULTS = [
    (
        "AttributeError: partially initialized module 'tensorflow' has no attribute 'keras' (most "
        "likely due to a circular import)",
        "rename that file",
    ),
    ("ModuleNotFoundError: No module named 'horovod'", "tf.distribute, not horovod"),
    ("ModuleNotFoundError: No module named 'tensorflow.examples'", "has no such module"),
    ("ModuleNotFoundError: No module named 'tensorflow.keras.wrappers'", "train_job_keras"),
    ("ModuleNotFoundError: No module named 'tensorflow'", "run `<suggest setup tags=tensorflow>`"),
    ("ImportError: cannot import name 'np_utils' from 'keras.utils' (/v/keras)", "no such name"),
    (
        "AttributeError: module 'tensorflow' has no attribute 'Session'. Did you mean: 'version'?",
        "has no Session: the script was written for a different version",
    ),
    (
        "RuntimeError: Collective ops must be configured at program startup",
        "create the strategy first",
    ),
    (
        "tensorflow.python.framework.errors_impl.AbortedError: /job:worker/replica:0/task:0 "
        "unexpectedly tried to connect with a different incarnation. It has likely restarted.",
        "several processes claim to be the same rank",
    ),
    ("ValueError: Attempt to convert a value (PerReplica:{", "keep train_job_keras at 2"),
    ("KeyError: 'evaluator'", "do not create a multi-worker strategy in the evaluator"),
    (
        "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
        "end the process that holds the port",
    ),
    (
        "tensorflow.python.framework.errors_impl.NotFoundError: Found an unshardable source "
        "dataset: name: TensorSliceDataset/_1",
        "AutoShardPolicy.DATA",
    ),
    (
        "tensorflow.python.framework.errors_impl.NotFoundError: /m/variables_temp/part-00000-of-1; "
        "No such file or directory [Op:MergeV2Checkpoints]",
        "$TRAIN_MODEL_DIR",
    ),
    ("FileExistsError: [Errno 17] File exists: '/data/model'", "exist_ok=True"),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_faults_of_scripts_are_known_by_their_messages(number: int) -> None:
    message, words = FAULTS[number]
    matching = [fault for fault in script_faults.FAULTS if fault.message.search(message)]
    assert matching[0] is script_faults.FAULTS[number], "each fault has its own row"
    for owner in ("", "in a child process: "):
        failed = ended(ends.EXIT, 1, f"exited with code 1: {owner}{message}")
        assert words in failed.remedy
        assert not failed.again
    # Otherwise, ranks that only lost this one would be blamed.
    reason = f"exited with code 1: {message}"
    assert not is_secondary(fallen("worker-1", "UnavailableError: Socket closed", reason=reason))


def test_every_known_fault_has_a_row() -> None:
    assert len(FAULTS) == len(script_faults.FAULTS)


@pytest.mark.parametrize(
    ("number", "words", "again"),
    [
        (signal.SIGSEGV, "crashed in native code, and the stacks in its log show where", True),
        (signal.SIGABRT, "crashed in native code", True),
        (signal.SIGBUS, "/dev/shm", True),
        (signal.SIGFPE, "crashed in native code", True),
        (signal.SIGILL, "this CPU lacks instructions", False),
        (signal.SIGKILL, "find out who sent the signal", True),
        (signal.SIGTERM, "find out who sent the signal", True),
    ],
)
def test_a_crash_is_not_a_signal_that_was_sent(number: int, words: str, again: bool) -> None:
    failed = ended(ends.SIGNAL, -number)
    assert words in failed.remedy
    assert failed.again is again


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (": ValueError: cannot read 'TimeoutError'", False),
        (": ValueError: label 12", False),
        (": in a child process: BrokenPipeError: [Errno 32] Broken pipe", True),
        (": requests.exceptions.ConnectionError: gone", True),
        (": ExceptionGroup: x (1 sub-exception): ConnectionResetError: gone", True),
        (": OSError: [Errno 116] Stale file handle", True),
        ("; its last line: ConnectionResetError was handled", False),
    ],
)
def test_only_the_error_itself_decides_whether_it_passes(error: str, again: bool) -> None:
    assert ended(ends.EXIT, 1, f"exited with code 1{error}").again is again


@pytest.mark.parametrize(
    ("reason", "tail", "secondary"),
    [
        (": OutOfData: shard 3", ["OutOfData: shard 3", LOST], False),
        (": in a thread: OutOfData: shard 3", [LOST], False),
        (": main.py: error: unrecognized arguments: --foo", [LOST], False),
        ("; its last line: no data in /data", ["no data in /data", LOST], False),
        ("; its last line: it is over", [LOST, "it is over"], True),
        ("", [LOST], True),
    ],
)
def test_whose_words_show_that_it_lost_another_rank(
    reason: str, tail: list[str], secondary: bool
) -> None:
    failed = fallen("worker-1", *tail, reason=f"exited with code 1{reason}")
    assert is_secondary(failed) is secondary


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        ("NotFoundError: /data/x; No such file or directory", False),
        ("InvalidArgumentError: Graph execution error: assertion failed: label 12", False),
        ("InvalidArgumentError: Collective ops is aborted by: Shape mismatch", False),
        ("OutOfRangeError: End of sequence", False),
        ("ResourceExhaustedError: OOM when allocating tensor", False),
        (
            "InvalidArgumentError: Collective ops is aborted by: Error reported from "
            "/job:worker/task:1: label 12",
            True,
        ),
        ("UnavailableError: Collective ops is aborted by: Socket closed", True),
        ("InternalError: Failed to connect", True),
    ],
)
def test_an_error_of_tensorflow_about_the_ranks_own_work_is_its_own(
    error: str, secondary: bool
) -> None:
    reason = f"exited with code 1: tensorflow.python.framework.errors_impl.{error}"
    # While the process ended, TensorFlow noticed that other ranks were gone.
    assert is_secondary(fallen("worker-1", LOST, reason=reason)) is secondary


def test_of_ranks_that_fail_by_themselves_the_first_is_named_by_clocks_that_are_set_right() -> None:
    error = "exited with code 1: ValueError: label 12"
    for order in itertools.permutations(range(3)):
        gang = [fallen(f"worker-{n}", reason=error, ended_at=10.0 + order[n]) for n in range(3)]
        assert first_of(gang).target.task == f"worker-{order.index(0)}"
        last = gang[order.index(2)]
        last.offset = -2.5  # its host's clock is ahead
        assert first_of(gang) is last


BAR = "".join(f"{8 * chr(8)}\r{step}/30 - loss: {1 / step:.4f}" for step in range(1, 31))
TRACE = 'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n'


def last_lines(log: str, **state: Any) -> list[str]:
    """Return the last lines in the message about a rank whose log arrived in two pieces."""
    failed = fallen("worker-1", **state)
    failed.add_log(log[: len(log) // 2])
    failed.add_log(log[len(log) // 2 :])
    message = failed_at([failed], failed, now=0.0).message
    return [line[2:] for line in message.partition("its last lines:\n")[2].splitlines()]


def test_the_last_lines_are_those_of_the_error() -> None:
    error = TRACE + "ValueError: label 12"
    after = "\nException ignored in: <f>\n" + TRACE + "BrokenPipeError: x\n"
    assert last_lines(f"begin\n{BAR}{error}{after}") == error.splitlines()


def test_the_last_lines_of_a_rank_that_was_killed_are_two() -> None:
    killed: Any = {"exit_code": -9, "cause": ends.SIGNAL, "reason": "was killed"}
    begin = "".join(f"line {number}\n" for number in range(30))
    assert last_lines(begin + BAR, **killed) == ["line 29", "30/30 - loss: 0.0333"]


def test_the_last_lines_of_a_crash_are_its_stack() -> None:
    crashed: Any = {"exit_code": -11, "cause": ends.SIGNAL, "reason": "was killed"}
    stack = [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00 (most recent call first):",
        '  File "main.py", line 5 in <module>',
    ]
    log = f"{BAR}\n{stack[0]}\n\n{stack[1]}\n{stack[2]}\n\nExtension modules: numpy (total: 1)\n"
    assert last_lines(log, **crashed) == stack


def test_the_last_line_is_the_state_of_a_bar_that_is_being_drawn() -> None:
    running = view("worker-1")
    running.add_log("begin\n" + BAR)
    assert list(running.tail) == ["begin"]
    assert running.last_line == "30/30 - loss: 0.0333"
    running.add_log("\n")
    assert list(running.tail) == ["begin", "30/30 - loss: 0.0333"]


def test_earlier_attempts_are_listed(tmp_path: Path) -> None:
    for number, (task, reason, step) in {
        1: ("worker-1", "was killed by SIGKILL (signal 9)", 120),
        2: (None, "", None),
        10: ("worker-0", "is of another control node", 3),
    }.items():
        ranks = [{"task": task, "exit_code": None, "reason": reason}]
        result = {"root_cause": task, "cause": "signal", "step": step, "ranks": ranks}
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({**result, "message": "stopped\nby anna"}))
    (tmp_path / "attempts" / "3").mkdir()  # it never got a result
    assert causes.earlier_attempts(tmp_path, 4) == [
        "attempt 1: worker-1 was killed by SIGKILL (signal 9) at step 120",
        "attempt 2: stopped",
    ]
    assert causes.earlier_attempts(tmp_path / "none", 4) == []


def test_the_same_step_twice_is_the_jobs_own_fault() -> None:
    killed = ended(ends.MEMORY, -9)
    assert why_not_again(killed, killed, 1, 3) == "it failed the same way twice at step 40"
    assert why_not_again(killed, ended(ends.MEMORY, -9, step=20), 1, 3) == ""
    failed = ended(ends.INTERNAL)
    assert "the same way twice at step 40" in why_not_again(failed, failed, 1, 3)
    crashed = ended(ends.SIGNAL, -11, step=None)
    assert "the same way twice at the start" in why_not_again(crashed, crashed, 1, 3)


def test_a_network_that_fails_twice_at_one_step_is_the_jobs_own_fault_if_all_hosts_answer() -> None:
    def failed(**rank: Any) -> Failure:
        first = {"task": "worker-0", "phase": "failed", "cause": ends.EXIT}
        second = {"task": "worker-1", "phase": "stopped", "cause": ends.STOPPED, **rank}
        result: Any = {"root_cause": "worker-0", "cause": cause_names.NETWORK, "step": 12}
        result["ranks"] = [{"reason": "", "exit_code": 1, **known} for known in (first, second)]
        return causes.failure_of(result)

    assert "the same way twice at step 12" in why_not_again(failed(), failed(), 1, 3)
    assert why_not_again(failed(phase="running", cause=None), failed(), 1, 3) == ""
    assert why_not_again(failed(phase="failed", cause=None), failed(), 1, 3) == ""


def test_what_comes_from_outside_may_hit_the_same_step_twice() -> None:
    for failed in (ended(ends.SIGNAL, -9), ended(cause_names.UNREACHABLE), ended(ends.EXIT, 143)):
        assert why_not_again(failed, failed, 1, 3) == ""


def test_the_limit_is_told() -> None:
    told = why_not_again(ended(ends.SIGNAL, -9), None, 3, 3)
    assert told == "it was restarted 3 times; the limit is 3 (train_job_max_restarts)"
