"""Which hosts this control node reaches, and what follows if it reaches none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import GONE, STEPPING, Hosts, Make, failed, notices_of
from train.gang.errors import WatchEndedError
from train.gang.watch import polling


def test_without_any_connection_the_job_is_left_alone_until_all_states_are_read(gang: Make) -> None:
    at_once: Any = threading.Barrier(2)  # both hosts have answered before one is cut off
    cut = [at_once, *[GONE] * 9]
    lost = failed("exited with code 1: UnavailableError: x", ended_at=9.0)
    first = failed("exited with code 3: ValueError", exit_code=3, ended_at=8.0)
    # The rank that answers first failed because of the other one.
    hosts = Hosts(worker_0=[STEPPING, *cut, lost], worker_1=[STEPPING, *cut, *[GONE] * 3, first])
    watched = gang(hosts, unreachable_timeout=10.0)
    outcome = watched.follow()
    assert outcome.root_cause == "worker-1"
    assert "exited with code 3: ValueError" in outcome.message
    left, back = notices_of(watched)[:2]
    assert (left["kind"], back["kind"]) == ("disconnected", "connected")
    assert "no connection to host-of-worker-0 and host-of-worker-1 since" in left["text"]


def test_after_a_cut_hosts_have_time_to_answer(gang: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling.Ranks, "longest_backoff", 15.0)
    watched, now = gang(Hosts(worker_0=[], worker_1=[]), unreachable_timeout=60.0), 1000.0
    first = watched.views[0]
    for view in watched.views:
        view.last_update_at, view.unresponsive_since, view.error = now - 90, now - 90, "gone"
    watched._reachability.check(now)
    first.last_update_at, first.unresponsive_since, first.error = now + 1, None, ""
    for seconds in range(1, 20):
        watched._reachability.check(now + seconds)
        if seconds < 15:
            kinds = [notice["kind"] for notice in notices_of(watched)]
            assert kinds == ["disconnected", "connected"]
    text = notices_of(watched)[-1]["text"]
    assert text.startswith("host-of-worker-1 cannot be reached from here")


@pytest.mark.parametrize("error", [GONE, AttributeError("no such plugin")])
def test_a_limit_without_connection_ends_the_watch_alone(gang: Make, error: Exception) -> None:
    watched = gang(Hosts(worker_0=[STEPPING, error]), disconnected_timeout=0.3)
    with pytest.raises(WatchEndedError, match="train_job_disconnected_timeout"):
        watched.follow()
    assert str(error) in notices_of(watched)[0]["text"]
