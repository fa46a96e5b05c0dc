"""Notices to the user while a job runs, once each."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.unit.gang.watch.made_up_gang import (
    RUNNING,
    Hosts,
    Make,
    Told,
    Update,
    done,
    notices_of,
    record,
)
from tests.unit.gang.watch.real_folders import Machine, lines
from train.gang.watch import notices


def test_nothing_is_noticed_of_a_job_that_is_over(gang: Make) -> None:
    alone = {**done(), "alone": True}
    watched = gang(Hosts(worker_0=[alone], worker_1=[alone]))
    watched.drain()
    assert notices_of(watched) == []


def test_a_rank_that_does_not_end_is_named_with_what_runs(gang: Make) -> None:
    stuck = {**RUNNING, "lingering": ["thread 'monitor'", "process 7 (sleep)"], "lingering_s": 300}
    watched = gang(Hosts(worker_0=[*[stuck] * 5, done()]))
    assert watched.follow().state == "completed"
    (said,) = notices_of(watched)
    assert said["kind"] == "lingering"
    assert (
        "made its last step 300 s ago and has not exited; still running: thread 'monitor', "
        "process 7" in said["text"]
    )


@pytest.mark.parametrize(
    ("attempt", "found", "step", "rhythm", "told"),
    [
        (2, True, 1401, "", "resumes at step 1401"),
        (2, False, 1, "", "starts at step 1, because TRAIN_CHECKPOINT_DIR was empty"),
        (
            *(2, False, 1, "every 300 s"),
            "starts from the beginning: no checkpoint had been written yet (one is written "
            "every 300 s)",
        ),
        (2, True, 1, "", "starts at step 1, although TRAIN_CHECKPOINT_DIR contains files"),
        (1, False, 1, "", ""),
    ],
)
def test_what_a_restart_costs_is_noticed_once(
    gang: Make, attempt: int, found: bool, step: int, rhythm: str, told: str
) -> None:
    at_work: Update = {"phase": "running", "attempt": attempt, "checkpoint_found": False}
    chief = {**at_work, "checkpoint_found": found}
    begun = {**at_work, "progress": record("starting", checkpoints=rhythm)}
    made = [{**at_work, "progress": record("training", step=n)} for n in (step, step + 1)]
    steps: Told = [begun, *made]
    over = {**done(), "checkpoint_found": found}  # may be seen before the steps of the other rank
    late: Told = [{"phase": "absent"}, {"phase": "absent"}, chief, over]
    hosts = Hosts(worker_0=late, worker_1=[*steps, done()])
    watched = gang(hosts)
    for view in watched.views:
        view.target = replace(view.target, attempt=attempt)
    before = watched.run_dir / "attempts/1"
    before.mkdir(parents=True)
    (before / "result.json").write_text(json.dumps({"step": 1437}))
    assert watched.follow().state == "completed"
    texts = [one["text"] for one in notices_of(watched) if one["kind"] == "resumed"]
    expected = f"attempt 2 {told}; attempt 1 had reached step 1437"
    assert texts == ([expected] if told else [])


def test_how_much_is_fetched_is_shown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FETCH_EVERY", 0.0)
    machine.rank(lines(200_000))
    gang = machine.gang()
    said: list[str] = []
    gang.drain(said.append)
    assert said
    assert said == machine.notices("fetching")
    shown = [re.fullmatch(r"fetching logs: (\d+) of (\d+) MB", text) for text in said]
    done, totals = zip(*((int(one[1]), int(one[2])) for one in shown if one), strict=True)
    assert list(done) == sorted(done)
    # Answers that came before the first notice are not counted.
    assert 10 < totals[0] <= 20
    assert machine.copy() == lines(200_000)
    gang.close()
    said.clear()
    machine.gang().drain(said.append)
    assert said == []
