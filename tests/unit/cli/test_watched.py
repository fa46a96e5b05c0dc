"""A job that another command watches, without Ansible."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.cli import playbooks
from train.cli.ansible_options import AnsibleOptions
from train.cli.job import Event, Result, keep
from train.cli.watch_lock import WatchedError, WatchLock, watcher_of
from train.cli.watched import WatchedJob

ENDED = {
    **{"state": "failed", "message": "bad", "restart": False, "restart_reason": "too often"},
    **{"metrics": {"loss": 1.0}, "ranks": [], "attempts": 3, "doubts": ["d"], "strict": True},
}


def rank(task: str, phase: str) -> dict[str, Any]:
    return {"task": task, "phase": phase, "host": "a", "progress": {}}


RESTART = {"restart": {"attempt": 2, "root_cause": "worker-1", "message": "it failed"}}


class Folder:
    """The folder of a job, and the command that watches it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.lock = run_dir, WatchLock(run_dir)

    def write(self, *events: Any) -> None:
        with (self.run_dir / "events.jsonl").open("a") as stream:
            stream.writelines(e if isinstance(e, str) else f"{json.dumps(e)}\n" for e in events)

    def end(self, **result: Any) -> None:
        if result:
            (self.run_dir / "result.json").write_text(json.dumps(result))
        self.lock.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    run_dir = tmp_path / "night"
    run_dir.mkdir()
    return Folder(run_dir)


def watched(folder: Folder, attach: Callable[[], Any] = lambda: pytest.fail("taken")) -> WatchedJob:
    watcher = watcher_of(folder.run_dir) or {}
    return WatchedJob("night", folder.run_dir, watcher, AnsibleOptions(("a,",)), {}, attach)


def shown(job: WatchedJob) -> list[tuple[str, str]]:
    return [(event.kind, event.task or event.data.get("phase", "")) for event in job.events(0.0)]


def test_the_last_events_then_the_new_ones_then_the_result_are_shown(folder: Folder) -> None:
    folder.write(rank("worker-0", "failed"), RESTART, rank("worker-0", "starting"), "damaged\n")
    folder.write(rank("worker-1", "starting"), rank("worker-0", "running"), '{"task": "wor')
    job = watched(folder)
    first, *found = [*job.events(0.0)]
    assert (first.kind, first.data["kind"]) == ("notice", "watched")
    assert [(event.task, event.data["phase"]) for event in found] == [
        *(("worker-0", "running"), ("worker-1", "starting"))
    ]
    assert shown(job) == []
    folder.write('ker-1", "phase": "running", "progress": {}}\n', RESTART)
    assert shown(job) == [("rank", "worker-1"), ("restart", "worker-1")]
    folder.end(**{**ENDED, "restart": True})
    folder.lock = WatchLock(folder.run_dir)  # it goes on
    assert shown(job) == []
    folder.write(rank("worker-0", "failed"))
    folder.end(**ENDED)
    assert shown(job) == [("rank", "worker-0")]
    assert job.result is not None
    assert (job.result.state, job.result.attempts, job.result.strict) == ("failed", 3, True)
    assert job.result.message == "bad\nnot restarted: too often"
    job.close()


class Attached:
    """A job that this command follows itself."""

    result: Result | None = None

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self.calls = run_dir, list[str]()

    def events(self, timeout: float) -> Any:
        yield Event("task", "night", "Attach")

    def leave(self) -> Result:
        self.result = Result("night", "left", "", {}, [], self._run_dir)
        return self.result

    def request_stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("result", [{}, {**ENDED, "restart": True}])
def test_a_watch_that_ended_before_its_job_is_taken_over(
    result: dict[str, Any], folder: Folder
) -> None:
    attached, faster = Attached(folder.run_dir), [WatchedError("night", {"pid": 8, "host": "b"})]

    def attach() -> Any:
        if faster:
            raise faster.pop()
        return attached

    job = watched(folder, attach)
    assert len(shown(job)) == 1
    folder.end(**result)
    assert shown(job) == []  # pid 8 was faster
    (event,) = job.events(0.0)
    assert event.data["text"] == "pid 8 on b has ended: this command watches the job now"
    assert shown(job) == [("task", "Attach")]
    job.request_stop()
    job.close()
    assert attached.calls == ["stop", "close"]
    assert job.leave().state == "left"
    assert [*job.events(0.0)] != []
    assert job.result == attached.result


def test_a_job_whose_folder_vanishes_is_looked_for(folder: Folder) -> None:
    job = watched(folder, lambda: Attached(folder.run_dir))
    [*job.events(0.0)]
    folder.lock.forget()
    folder.lock.close()
    (event,) = job.events(0.0)
    assert "watches the job now" in event.data["text"]


def test_a_job_that_is_left_goes_on(folder: Folder) -> None:
    job = watched(folder)
    message = job.leave().message
    assert "watches it: attach to it with `" in message
    assert watcher_of(folder.run_dir) is not None


STOPPED = {
    **{"was": "running", "phase": "stopped", "ended": 1, "remaining": [], "port": 1},
    **{"port_free": True, "gpu_memory_free": None, "given_back": 0},
}


def begun(
    monkeypatch: pytest.MonkeyPatch, outcome: playbooks.PlaybookOutcome
) -> list[tuple[str, dict[str, Any]]]:
    """Let playbooks end at once with ``outcome``; return the list of those that begin."""
    found: list[tuple[str, dict[str, Any]]] = []

    def begin(name: str, _: Any, variables: Any) -> Any:
        found.append((name, variables))
        return SimpleNamespace(wait=lambda timeout: True, close=lambda: outcome)

    monkeypatch.setattr(playbooks, "Playbook", begin)
    return found


def answer(**report: Any) -> playbooks.PlaybookOutcome:
    answers = {"a": {"stop_report": {**STOPPED, **report}, "more": []}}
    return playbooks.PlaybookOutcome(code=0, results={"gang_stop": {"a": {"hosts": answers}}})


def test_a_stop_uses_the_variables_of_the_start(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"train_job_runs_dir": str(folder.run_dir.parent)}
    keep("night", {**runs, "train_job_root": "/data/train"})
    called = begun(monkeypatch, answer())
    job = watched(folder)
    [*job.events(0.0)]
    job.request_stop()
    expected = {**runs, "train_job_root": "/data/train", "train_job_id": "night"}
    assert called == [("stop.yml", expected)]
    assert shown(job) == []
    job._end_by = 0.0  # the watch does not end
    assert shown(job) == []
    assert job.result is not None
    assert job.result.state == "unwatched"
    assert job.result.message == "the job was stopped, but its end was not reported in time"


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (playbooks.PlaybookOutcome(code=2, failures={"no": ["a"]}), "a: no"),
        (answer(was="absent"), "no host has a rank of it"),
        (playbooks.PlaybookOutcome(code=0), "no host has a rank of it"),
        (answer(was=7), "a malformed report: "),
    ],
)
def test_a_job_that_could_not_be_stopped_is_not_reported_as_stopped(
    outcome: playbooks.PlaybookOutcome,
    why: str,
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun(monkeypatch, outcome)
    job = watched(folder)
    [*job.events(0.0)]
    job.request_stop()
    (event,) = job.events(0.0)
    assert event.data["text"].startswith(f"could not stop the job: {why}")
    assert shown(job) == []
    job._end_by = 0.0  # the watch does not end
    assert shown(job) == []
    assert job.result is not None
    assert job.result.state == "unwatched"
    assert job.result.message == event.data["text"]


def test_leases_that_were_given_back_count_as_a_stop(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(monkeypatch, answer(was="absent", given_back=2))
    job = watched(folder)
    [*job.events(0.0)]
    job.request_stop()
    assert shown(job) == []
