"""The watch over a gang, with fake hosts."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import (
    CHIEF,
    GONE,
    RUNNING,
    Hosts,
    Make,
    done,
    events,
    failed,
    notices_of,
    record,
)
from train.gang.watch import follow
from train.gang.watch.outcome import GangOutcome, result_of
from train.gang.watch.stragglers import Stragglers


def test_all_complete(gang: Make) -> None:
    running = {"phase": "running", "progress": '{"phase": "training", "loss": NaN}\n'}
    hosts = Hosts(worker_0=[running, done(sha="aa")], worker_1=[done("bye\n", "aa")])
    watched = gang(hosts)
    outcome = watched.follow()
    assert outcome == GangOutcome("completed", None, "all ranks completed")
    result = result_of("x", outcome, watched.views, attempts=1)
    assert result["metrics"] == {"test_accuracy": 0.9}
    assert [rank["weights_sha256"] for rank in result["ranks"]] == ["aa", "aa"]
    assert (watched.run_dir / "logs/worker-1.log").read_text() == "bye\n"
    told = events(watched)
    assert {event["task"] for event in told} == {"worker-0", "worker-1"}
    losses = {event["progress"].get("loss") for event in told if event["task"] == "worker-0"}
    assert losses == {"NaN"}, "JSON knows no such number"


def test_a_host_that_freezes_is_given_up(gang: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "WAIT", 0.1)
    thaw: Any = threading.Event()
    hosts = Hosts(worker_0=[CHIEF], worker_1=[CHIEF, thaw])
    outcome = gang(hosts, unreachable_timeout=0.5).follow()
    thaw.set()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-1")
    assert "was unreachable for 0.5 s (train_job_unreachable_timeout)" in outcome.message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"metrics": 0.93}', "metrics is not an object of numbers"),
        ('{"loss": ' + "9" * 400 + "}", "loss is out of range"),
        ('{"weights_sha256": ["a"]}', "weights_sha256 is not a string"),
        ("[" * 5000, "it is nested too deeply"),
        ('{"step": "\x1b]52;c;aGk=\x07"}', "it is not valid JSON"),
    ],
)
def test_a_malformed_progress_line_is_reported_once(gang: Make, line: str, why: str) -> None:
    told = {**RUNNING, "progress": record("training", step=1) + line + "\n" + line + "\n"}
    hosts = Hosts(worker_0=[told, {**RUNNING, "progress": line + "\n"}, done()])
    watched = gang(hosts)
    assert watched.follow().state == "completed"
    (notice,) = notices_of(watched)
    assert "ignoring line 2 of the rank's progress" in notice["text"]
    assert f" progress: {why}; later lines" in notice["text"]


def test_slow_hosts_are_awaited_at_the_end_as_long_as_some_answer(gang: Make) -> None:
    class Slow(Hosts):
        def poll(self, asked: Any, *given: Any) -> Any:
            time.sleep({"worker-0": 0.3, "worker-1": 0.7, "worker-2": 1.1}.get(asked.task, 20))
            return super().poll(asked, *given)

    hosts = Slow(**{f"worker_{index}": [done()] for index in range(4)})
    watched = gang(hosts, unreachable_timeout=0.6)
    began = time.monotonic()
    watched.drain()
    assert time.monotonic() - began < 10
    assert [view.phase for view in watched.views] == ["completed"] * 3 + ["failed"]
    assert watched.views[3].error == "is unreachable"


def test_the_hosts_of_ranks_that_ended_in_the_watch_are_not_asked_again(gang: Make) -> None:
    class Counting(Hosts):
        asked: Counter[str] = Counter()

        def poll(self, asked: Any, *given: Any) -> Any:
            self.asked[asked.task] += 1
            return super().poll(asked, *given)

    broken = failed("exited with code 1: ValueError: no", log="ValueError: no\n")
    watched = gang(Counting(worker_0=[broken], worker_1=[RUNNING]))
    outcome = watched.follow()
    ended = json.loads(json.dumps(watched.ended_ranks()))
    answered_at = watched.views[0].last_update_at
    watched.close()
    hosts = Counting(worker_0=[GONE], worker_1=[done("bye\n", "aa")])
    hosts.asked.clear()
    again = gang(hosts)
    again.drain(ended=ended)
    assert hosts.asked == {"worker-1": 1}
    ranks = result_of("x", outcome, again.views, attempts=1)["ranks"]
    assert [rank["phase"] for rank in ranks] == ["failed", "completed"]
    assert ranks[0]["reason"] == "exited with code 1: ValueError: no"
    assert [*again.views[0].tail] == ["ValueError: no"]
    assert again.views[0].last_update_at == answered_at


def test_the_last_progress_is_recorded_however_fast_it_came(gang: Make) -> None:
    steps = [{**RUNNING, "progress": record("training", step=step)} for step in range(1, 9)]
    watched = gang(Hosts(worker_0=[*steps, done()]))
    watched.follow()
    assert events(watched)[-1]["progress"]["phase"] == "done"


def test_many_updates_do_not_repeat_the_comparison_of_all_ranks(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    monkeypatch.setattr(Stragglers, "finding", lambda self: made.append(time.monotonic()))
    monkeypatch.setattr(follow, "_COMPARE_S", 0.3)
    began = time.monotonic()
    steps = [{"phase": "running", "progress": record("training", step=n)} for n in range(60)]
    ranks = {f"worker_{index}": [*steps, done()] for index in range(8)}
    assert gang(Hosts(**ranks)).follow().state == "completed"
    # The first one is at once, and the last one at the end.
    assert 2 <= len(made) <= (time.monotonic() - began) / 0.3 + 2
