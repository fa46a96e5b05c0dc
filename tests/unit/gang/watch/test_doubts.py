"""Doubts about completed jobs, which may not have done what their users intended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from train.gang.watch import doubts
from train.gang.watch.views import Target, View
from train.host import progress_records

Record = dict[str, Any]


def view(task: str = "worker-0", *found: Record, log: str = "", **state: Any) -> View:
    kind = task.partition("-")[0]
    non_training = kind in ("ps", "evaluator")
    target = Target(f"host-{task}", task, f"/x/{task}", "python3", task, non_training)
    known: Any = {"phase": "completed", "exit_code": 0, **state}
    made = View(target, state=known)
    lines = "\n".join(json.dumps({"phase": "training", **record}) for record in found)
    made.add_progress(progress_records.parse_progress(lines))
    made.add_log(log)
    return made


def steps(*numbers: int, of: int = 10, **more: Any) -> list[Record]:
    return [{"step": number, "steps": of, **more} for number in numbers]


DONE = {"phase": "done", "step": 3, "steps": 10}


@pytest.mark.parametrize(
    ("gang", "doubt"),
    [
        ([steps(1, 2, 3), steps(*range(1, 11))], "worker-0 (host-worker-0) ended with exit code 0"),
        ([steps(1, 2, 3), steps(1, 2, 3)], "worker-1 (host-worker-1) ended with exit code 0 after"),
        ([steps(0), steps(0)], "after step 0 of 10"),
        ([steps(1)], "after step 1 of 10"),
        ([steps(4)], ""),  # one record every four steps
        ([steps(*range(1, 10))], ""),  # records are written irregularly
        ([steps(3, 6, of=11)], ""),
        ([[*steps(1, 2, 3), DONE], [*steps(1, 2, 3), DONE]], ""),  # an intended early end
        ([[*steps(1, 2, 3), DONE], steps(*range(1, 11))], "others continued to step 10"),
        # Early stopping of Keras: all ranks end together, at the end of an epoch.
        (2 * [steps(10, 20, of=100, epoch=2, epochs=10)], ""),
        (2 * [steps(10, 20, 25, of=100, epoch=3, epochs=10)], "after step 25 of 100"),
        ([[], steps(*range(1, 11))], ""),
        ([[{"loss": 0.1}], [{"loss": 0.2}]], ""),
    ],
)
def test_ranks_that_leave_early(gang: list[list[Record]], doubt: str) -> None:
    found = doubts.find([view(f"worker-{n}", *record) for n, record in enumerate(gang)])
    assert len(found) == bool(doubt)
    assert doubt in "".join(found)


def test_epochs_of_keras_are_compared() -> None:
    def fit(*epochs: int) -> list[Record]:
        return [{"source": "console", "epoch": epoch, "epochs": 9} for epoch in epochs]

    assert not doubts.find([view("worker-0", *fit(1, 2, 3)), view("worker-1", *fit(1, 2, 3))])
    assert not doubts.find([view("worker-0", *fit(1, 2)), view("worker-1", *fit(1, 2, 3))])
    (found,) = doubts.find([view("worker-0", *fit(1)), view("worker-1", *fit(*range(1, 10)))])
    assert "worker-0 (host-worker-0) ended after epoch 1 while others continued to epoch 9" in found


def test_a_loss_that_is_no_number() -> None:
    (found,) = doubts.find([view("worker-0", {"loss": "NaN"}), view("worker-1", {"loss": "NaN"})])
    assert "worker-0 (host-worker-0), worker-1 (host-worker-1) was NaN" in found
    assert not doubts.find([view("worker-0", {"loss": "NaN"}, {"loss": 0.1})])


def test_what_the_hosts_have_seen() -> None:
    views = [view(f"worker-{n}", alone=True, at_work=["python main.py"]) for n in range(2)]
    both = "worker-0 (host-worker-0), worker-1 (host-worker-1)"
    alone, at_work = doubts.find(views)
    assert alone.startswith(f"{both} trained without any connection to another rank")
    assert at_work.startswith(f"the script of {both} ended while processes")
    assert "(python main.py)" in at_work
    assert not doubts.find([view(alone=False, at_work=[])])
    reason = "made its last step 9 s ago and did not exit (train_job_exit_timeout)"
    (lingered,) = doubts.find([view(cause="lingered", reason=reason)])
    assert lingered.startswith(f"worker-0 (host-worker-0) {reason}")


def test_a_rank_that_has_never_begun() -> None:
    lasted: dict[str, Any] = {"port": 12345, "started_at": 100.0, "ended_at": 110.0}
    (found,) = doubts.find([view(**lasted), view("worker-1", **lasted, running_at=101.0)])
    assert found.startswith("worker-0 (host-worker-0) ended without opening a port or reporting")
    assert not doubts.find([view(**{**lasted, "ended_at": 102.0})])
    assert not doubts.find([view(**{**lasted, "port": None})])
    assert not doubts.find([view("worker-0", {"step": 1}, **lasted)])


TRACE = 'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("log", "doubt"),
    [
        ("step 1\nERROR:root:cannot save the model\n", "ERROR:root:cannot save the model"),
        ("2026-11-25 12:00:01,123 ERROR no space\n", "ERROR no space"),
        ("[ERROR] no space", "[ERROR] no space"),
        (TRACE + "ValueError: no data\n", "ValueError: no data"),
        (TRACE + "ValueError: no data\ntrains on\n", ""),
        ("ERROR:root:tries again\nstep 2\n", ""),
        ("ERROR_RATE 0.1\n", ""),
        ("Exception ignored in: <function A.__del__ at 0x1>\n" + TRACE + "ValueError: x\n", ""),
        ("E0000 00:00:1795281778.9 1 agent.cc:9] Socket closed\n", ""),
        ("the mean ERROR is 0.1\n", ""),
        ("Test ERROR: 0.89453125\n", ""),
        ("Final test ERROR rate = 12 %, loss: 1e-3\n", ""),
        ("ERROR 28\n", "ERROR 28"),
        ("ERROR: 3.5 GB could not be written\n", "ERROR: 3.5 GB"),
        ("", ""),
    ],
)
def test_a_log_that_ends_with_an_error(log: str, doubt: str) -> None:
    found = doubts.find([view(log=log)])
    assert len(found) == bool(doubt)
    assert doubt in "".join(found)


def test_only_ranks_that_train_count_if_there_are_any() -> None:
    server = view("ps-0", *steps(1, 2))
    assert not doubts.find([view("chief-0", *steps(*range(1, 11))), server])
    assert len(doubts.find([server])) == 1
    assert not doubts.find([])
