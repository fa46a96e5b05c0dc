"""A rank as it is known here: its last lines, and whether it fell because of another one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gang.watch.made_up_views import fallen, view
from train.gang.watch.outcome import (
    failed_at,
)
from train.gang.watch.views import is_secondary
from train.host import end_causes
from train.host.progress_records import Progress

LOST = "E0000 00:00:1795281778.9 1 agent.cc:9] task /job:worker/task:0: Socket closed"


@pytest.mark.parametrize(
    ("line", "state", "secondary"),
    [
        # A rank that hung inside TensorFlow waited for another one.
        ("", {"cause": end_causes.HUNG, "exit_code": -6, "stuck_in_framework": True}, True),
        ("", {"cause": end_causes.HUNG, "exit_code": -6, "stuck_in_framework": False}, False),
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


def test_what_is_approximate_is_not_kept() -> None:
    chief = view("worker-0")
    epoch: Progress = {"source": "console", "phase": "training"}
    chief.add_progress([{**epoch, "loss": 0.7}, {**epoch, "approximate": {"loss": 0.6}}])
    assert chief.record == {**epoch, "loss": 0.7, "approximate": {"loss": 0.6}}
    chief.add_progress([{**epoch, "step": 3}])
    assert chief.record == {**epoch, "loss": 0.7, "step": 3}


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


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (
            "ValueError: UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/"
            "pair.cc:538] Read error [127.0.0.1]:2952: Connection reset by peer",
            True,
        ),
        (
            "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [127.0.0.1]:11181. This is typically caused by a remote "
            "worker crashing.",
            True,
        ),
        ("torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /x", True),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x10 and 784x32)", False),
        ("ValueError: the data of step 40 is bad", False),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory", False),
        ("jax.errors.JaxRuntimeError: ABORTED: Barrier failed: a task has died", True),
        ("ValueError: the Barrier option must be positive", False),
        ("KeyError: 'heartbeat'", False),
        ("MyError: Connection refused by policy", False),
        ("ConnectionRefusedError: [Errno 111] Connection refused", True),
        ("requests.exceptions.ConnectionError: ('Connection aborted.', Error(104))", True),
        ("RuntimeError: Connection reset by peer", True),
        (
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
            "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
            "store->get('0') got error: Connection reset by peer. This may indicate a crash",
            True,
        ),
        ("RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors", True),
        ("horovod.common.exceptions.HorovodInternalError: Connection reset by peer", True),
        ("grpc._channel._InactiveRpcError: status = StatusCode.UNAVAILABLE", True),
        (
            "training.cluster.TrainingError: lost contact with worker-1: UnavailableError: "
            "Connection reset by peer",
            True,
        ),
        ("training.cluster.TrainingError: chief-0 (10.0.0.1:2) was unresponsive for 60 s", True),
        (
            "training.cluster.TrainingError: cannot join the gang as worker-1: Barrier failed "
            "because: task is set to ERROR",
            True,
        ),
        ("training.cluster.TrainingError: the loss is nan after step 7", False),
        ("RuntimeError: UNAVAILABLE: failed to connect to all addresses", True),
        ("torch.distributed.DistBackendError: NCCL error: invalid usage", False),
    ],
)
def test_errors_of_jax_and_pytorch_about_another_rank(error: str, secondary: bool) -> None:
    assert is_secondary(fallen("worker-1", reason=f"exited with code 1: {error}")) is secondary


@pytest.mark.parametrize("cause", [end_causes.DOWNLOAD, end_causes.MEMORY, end_causes.DISK])
def test_what_concerns_one_host_is_not_blamed_on_another(cause: str) -> None:
    reason = "exited with code 1: urllib.error.URLError: <urlopen error Connection refused>"
    assert not is_secondary(fallen("worker-1", LOST, cause=cause, reason=reason))


@pytest.mark.parametrize(
    ("line", "secondary"),
    [
        (
            "F1127 21:05:09.019610    9796 client.h:80] Terminating process because the JAX "
            "distributed service detected fatal errors. This most likely indicates that another "
            "task died; see the other task logs for more details.",
            True,
        ),
        ("F1127 21:05:09.019610    9796 array.h:80] Check failed: size > 0", False),
    ],
)
def test_whether_jax_aborted_a_rank_because_of_another(line: str, secondary: bool) -> None:
    failed = fallen("worker-1", "Epoch 1/2", line, "Fatal Python error: Aborted", exit_code=-6)
    assert is_secondary(failed) is secondary


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
    killed: Any = {"exit_code": -9, "cause": end_causes.SIGNAL, "reason": "was killed"}
    begin = "".join(f"line {number}\n" for number in range(30))
    assert last_lines(begin + BAR, **killed) == ["line 29", "30/30 - loss: 0.0333"]


def test_the_last_lines_of_a_crash_are_its_stack() -> None:
    crashed: Any = {"exit_code": -11, "cause": end_causes.SIGNAL, "reason": "was killed"}
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


def test_a_host_that_is_a_little_late_may_still_be_asked() -> None:
    late = view("worker-1")
    late.asked, late.wait = 100.0, 5.0
    assert late.is_unresponsive(109.0)
    assert not late.is_gone(109.0)
    assert late.is_gone(121.0)
    late.asked, late.error = None, "connection refused"
    assert late.is_gone(109.0)
