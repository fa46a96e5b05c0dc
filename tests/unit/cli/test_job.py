"""A job that is followed, without Ansible: what it makes of playbooks that break off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.cli import job as jobs
from train.cli import playbooks
from train.gang import login_failures
from train.gang.login_failures import LoginFailure
from train.gang.plan import withdrawal
from train.gang.watch import causes

STARTED = "rank_start"
AWAY = login_failures.failure("no-route")
POLICY = {"max_restarts": 3, "restart_delay": 0, "host_wait": 60, "min_workers": 0}
MANIFEST: dict[str, Any] = {
    "attempt": 1,
    "attempts": [{"attempt": 1, "staged": True}],
    "policy": POLICY,
}


class Playbooks:
    """Stands in for module playbooks: they end with the outcomes given, one after another."""

    def __init__(self, *outcomes: playbooks.Outcome | None) -> None:
        self._outcomes = iter(outcomes)
        # Names and variables of those that were followed, and of those run to their end.
        self.begun: list[tuple[str, dict[str, Any]]] = []
        self.run: list[tuple[str, dict[str, Any]]] = []
        self.unending = False
        self._playbooks: list[Any] = []

    def begin(self, name: str, inventory: Path, variables: dict[str, Any]) -> Any:
        self.begun.append((name, variables))
        given = next(self._outcomes)
        playbook = SimpleNamespace(outcome=given or playbooks.Outcome(), ended=bool(given))
        playbook.wait = lambda timeout: playbook.ended and not self.unending
        playbook.close = lambda log=None: playbook.outcome
        self._playbooks.append(playbook)
        return playbook

    def end(self, number: int, outcome: playbooks.Outcome) -> None:
        """End the playbook that was begun as this one, from 0."""
        self._playbooks[number].outcome, self._playbooks[number].ended = outcome, True

    def run_playbook(self, name: str, inventory: Path, variables: Any) -> playbooks.Outcome:
        self.run.append((name, variables))
        return playbooks.Outcome(code=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job that was started with a root of its own."""
    run_dir = tmp_path / "runs/mine"
    run_dir.mkdir(parents=True)
    (run_dir / "manifest.json").write_text(json.dumps(MANIFEST))
    (run_dir / "code.tar.gz").touch()
    jobs.keep("mine", {**variables(tmp_path), "train_job_root": "/data/train"})
    return run_dir


def variables(folder: Path) -> dict[str, Any]:
    return {"train_job_runs_dir": str(folder / "runs")}


def test_variables_with_jinja_are_not_used_again_unless_they_are_data(
    tmp_path: Path, folder: Path
) -> None:
    given = {**variables(tmp_path), "train_job_root": "/data/train"}
    templates = {
        "train_job_python": "{{ lookup('pipe', 'id') }}",
        "train_job_gpus": [{"deep": ["{# none #}"]}],
    }
    data = {"train_job_args": ["{{ item }}", "{# none #}"], "train_job_exclude": ["{% if %}"]}
    jobs.keep("mine", {**given, **templates, **data, "train_job_address": "{ {a}"})
    used = jobs.with_kept("mine", variables(tmp_path))
    assert used == {**given, **data, "train_job_address": "{ {a}", "train_job_id": "mine"}
    again = {**variables(tmp_path), "train_job_python": "{{ mine }}"}
    assert jobs.with_kept("mine", again)["train_job_python"] == "{{ mine }}"


Follow = Callable[..., tuple[jobs.Job, Playbooks]]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> Follow:
    def begin(*outcomes: playbooks.Outcome | None) -> tuple[jobs.Job, Playbooks]:
        fake = Playbooks(*outcomes)
        monkeypatch.setattr(playbooks, "Playbook", fake.begin)
        monkeypatch.setattr(playbooks, "run_playbook", fake.run_playbook)
        again = {"train_job_attempt": 2}
        return jobs.Job("mine", "train.yml", tmp_path, variables(tmp_path), **again), fake

    return begin


def pump(job: jobs.Job, times: int = 3) -> None:
    for _ in range(times):
        list(job.events(0.0))


def killed(lost: dict[str, LoginFailure] | None = None, **results: Any) -> playbooks.Outcome:
    """Return the outcome of an ansible-playbook that was killed after the start."""
    return playbooks.Outcome(-9, called={STARTED}, unreachable=lost or {}, results=results)


def planned(code: int | None) -> playbooks.Outcome:
    """Return the outcome of an ansible-playbook that has planned the second attempt."""
    return playbooks.Outcome(code, results={"plan": {"node-1": {"job": "mine", "attempt": 2}}})


def plan_again(folder: Path) -> None:
    """Leave in a job's folder what the plan of a second attempt does."""
    (folder / "result.json").write_text(json.dumps({"state": "failed", "attempts": 1}))
    withdrawal.set_aside(folder, 1)
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "attempt": 2}))


def is_as_before(folder: Path) -> bool:
    """Return whether a job's folder is as its first attempt left it."""
    files = [folder / "manifest.json", folder / "result.json"]
    attempts = [json.loads(path.read_text()) for path in files if path.exists()]
    numbers = [about.get("attempt", about.get("attempts")) for about in attempts]
    return numbers == [1, 1] and not (folder / "attempts").exists()


@pytest.mark.parametrize("end", ["stop", "leave"])
def test_a_restart_given_up_early_loses_nothing(follow: Follow, folder: Path, end: str) -> None:
    job, fake = follow(None)
    pump(job)
    assert getattr(job, end)().message == "nothing had been started"
    left = {path.name for path in folder.iterdir()}
    assert left >= {"manifest.json", "code.tar.gz", "variables.json"}
    assert fake.run == []


@pytest.mark.parametrize("end", ["stop", "leave"])
def test_what_was_taken_before_the_start_is_given_back(
    follow: Follow, folder: Path, end: str
) -> None:
    plan_again(folder)
    job, fake = follow(planned(code=None))
    fake.unending = True
    pump(job)
    assert getattr(job, end)().message == "nothing had been started"
    assert [name for name, _ in fake.run] == ["unstage.yml"]
    assert is_as_before(folder)


def test_a_playbook_that_was_killed_before_the_start_leaves_nothing_taken(
    follow: Follow, folder: Path
) -> None:
    plan_again(folder)
    job, fake = follow(planned(code=-9))
    pump(job)
    assert job.result is not None
    assert job.result.state == "refused"
    assert [name for name, _ in fake.run] == ["unstage.yml"]
    assert is_as_before(folder)


def test_a_plan_that_is_undone_already_is_left_alone(follow: Follow, folder: Path) -> None:
    job, fake = follow(planned(code=None))  # the manifest is that of the first attempt
    pump(job)
    assert job.leave().message == "nothing had been started"
    assert fake.run == []
    assert (folder / "code.tar.gz").exists()


def test_a_job_that_was_stopped_while_it_waited_ends_as_stopped(
    follow: Follow, folder: Path
) -> None:
    how = "was stopped by anna"
    refused: Any = {"failures": {"nothing was started": ["node-1"]}, "stopped": how}
    job, fake = follow(playbooks.Outcome(2, **refused))
    pump(job)
    assert job.result is not None
    assert (job.result.state, fake.run) == ("stopped", [])
    assert job.result.message == f"nothing had been started: the job {how}"


def test_a_job_that_was_stopped_while_its_restart_waited_ends_as_stopped(
    follow: Follow, folder: Path
) -> None:
    failed = {**STOPPED, "state": "failed", "message": "fell", "root_cause": "worker-1"}
    failed |= {"cause": "signal", "ranks": [], "restart": True}
    (folder / "result.json").write_text(json.dumps(failed))
    refused: Any = {"failures": {"no": ["node-1"]}, "stopped": "was stopped by anna"}
    report = {"node-1": {"result": failed}}
    job, fake = follow(killed(report=report), playbooks.Outcome(2, **refused))
    pump(job, 4)
    assert job.result is not None
    assert job.result.state == "stopped"
    assert job.result.message.startswith("the job was stopped by anna between two attempts")
    assert [name for name, _ in fake.run] == ["stop.yml", "over.yml"]


STOPPED: dict[str, Any] = {
    **{"state": "stopped", "message": "the job was stopped by anna", "root_cause": None},
    **{"cause": None, "step": None, "metrics": {}, "ranks": [], "attempts": 1},
    **{"restart": False, "restart_reason": "", "restarts_left": 3, "restart_delay": 0.0},
}


def test_a_job_that_is_stopped_is_followed_to_its_end(follow: Follow) -> None:
    report = {"node-1": {"result": STOPPED}}
    ended = playbooks.Outcome(2, called={STARTED}, results={"report": report})
    job, fake = follow(killed(), None, playbooks.Outcome(code=0))
    pump(job)
    job.request_stop()
    told = [event.data["text"] for _ in range(3) for event in job.events(0.0)]
    assert told == ["stopping the job on every host"]
    assert job.result is None, "the watch writes how it ended"
    names = [name for name, _ in fake.begun]
    assert names == ["train.yml", "attach.yml", "stop.yml"]
    assert fake.begun[-1][1]["train_job_root"] == "/data/train"
    fake.end(1, ended)
    assert job.stop().message == "the job was stopped by anna"
    assert fake.run == []


def test_a_watch_that_does_not_end_after_the_stop_is_given_up(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_END_LIMIT_FAILED", 0.0)
    lost = playbooks.Outcome(4, unreachable={"node-3": AWAY})
    job, _ = follow(killed(), None, lost)
    pump(job)
    result = job.stop()
    assert result.state == "failed"
    assert "node-3 is unreachable: the host cannot be reached" in result.message


def test_a_job_is_stopped_between_two_attempts(follow: Follow, folder: Path) -> None:
    rank = {"task": "worker-1", "exit_code": -9, "reason": "was killed by SIGKILL (signal 9)"}
    failed = {**STOPPED, "state": "failed", "message": "fell", "root_cause": "worker-1"}
    failed |= {"cause": "signal", "step": 7, "ranks": [rank], "restart": True}
    failed["restart_delay"] = 60.0
    (folder / "result.json").write_text(json.dumps(failed))
    job, fake = follow(killed(report={"node-1": {"result": failed}}))
    pump(job)
    result = job.stop()
    assert result.state == "stopped"
    assert re.search(r"the job was stopped by \S+ between two attempts\n", result.message)
    assert "attempt 1: worker-1 was killed by SIGKILL (signal 9) at step 7" in result.message
    assert [name for name, _ in fake.run] == ["stop.yml", "over.yml"]
    saved = json.loads((folder / "result.json").read_text())
    assert (saved["state"], saved["restart"]) == ("stopped", False)
    assert saved["message"] == result.message
    assert not (folder / jobs.UNDECIDED_FILE).exists()


@pytest.mark.parametrize("lost", [{}, {"node-3": AWAY}])
def test_attached_three_times_then_left(
    follow: Follow, folder: Path, lost: dict[str, LoginFailure]
) -> None:
    # A gang may continue without a lost host, which is no reason for what was killed.
    job, fake = follow(killed(lost), *[playbooks.Outcome(code=-9)] * 3)
    pump(job, 6)
    assert [name for name, _ in fake.begun] == ["train.yml", *["attach.yml"] * 3]
    assert job.result is not None
    assert job.result.state == "unwatched"
    assert "left running: attach again with `" in job.result.message
    assert fake.run == [], "what broke here is no reason to end the job"
    assert (folder / jobs.UNDECIDED_FILE).exists()


@pytest.mark.parametrize("reached", [False, True])
def test_a_restart_waits_for_the_network_however_long_and_for_one_host_only_so_long(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, folder: Path, reached: bool
) -> None:
    monkeypatch.setattr(jobs, "_CHECK_AGAIN", 0.0)
    hosts = ["node-1", "node-2"]
    more = {"ranks": [{"host": host} for host in hosts], "policy": {**POLICY, "host_wait": 0}}
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, **more}))
    lost = dict.fromkeys(hosts[:1] if reached else hosts, AWAY)
    refused = playbooks.Outcome(code=4, unreachable=lost, failures={"too few": ["x"]})
    rank = {"task": "worker-1", "exit_code": -9, "reason": "was killed", "host": "node-1"}
    written: dict[str, Any] = {"state": "failed", "message": "fell", "root_cause": "worker-1"}
    written.update(cause="signal", step=None, metrics={}, ranks=[rank], attempts=2)
    written.update(restart=True, restart_reason="", restart_delay=0.0)
    (folder / "result.json").write_text(json.dumps(written))
    earlier = folder / "attempts" / "1" / "result.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text(json.dumps({**written, "step": 7}))
    job, fake = follow(killed(report={"node-1": {"result": written}}), *[refused] * 50)
    pump(job, 40)
    assert (job.result is not None) is reached
    assert (len(fake.begun) > 10) is not reached
    saved = json.loads((folder / "result.json").read_text())
    assert saved["restart"] is not reached
    assert ("too few" in saved["restart_reason"]) is reached
    for message in (saved["message"], job.result.message if job.result else saved["message"]):
        assert message.endswith("\nattempt 1: worker-1 was killed at step 7") is reached


def test_variables_of_the_start_hold_for_status_and_stop(follow: Follow, tmp_path: Path) -> None:
    _, fake = follow(None)
    jobs.status("mine", tmp_path, variables(tmp_path))
    jobs.stop("mine", tmp_path, {**variables(tmp_path), "train_job_root": "/other"})
    jobs.status("", tmp_path, variables(tmp_path))
    roots = [given.get("train_job_root") for _, given in fake.run]
    assert roots == ["/data/train", "/other", None]


def test_attempts_that_were_never_staged_are_no_restarts(folder: Path) -> None:
    rank = {"task": "worker-1", "exit_code": -6, "reason": "was killed by SIGABRT (signal 6)"}
    result: Any = {"state": "failed", "root_cause": "worker-1", "cause": "signal", "step": 7}
    result["ranks"] = [rank]

    def plan(*staged: bool) -> None:
        attempts = [{"attempt": n, "staged": one} for n, one in enumerate(staged, 1)]
        manifest = {**MANIFEST, "attempt": len(staged), "attempts": attempts}
        (folder / "manifest.json").write_text(json.dumps(manifest))

    plan(*[True] * 9)
    given_up = causes.next_attempt(result, folder, supervised=True)
    assert "the limit is 3" in given_up["restart_reason"]
    # Of the last one, where a control node attaches to a job that it has planned again.
    for staged in ([True, False, False, True], [True, False, False, False]):
        plan(*staged)
        again = causes.next_attempt(result, folder, supervised=True)
        assert (again["restart"], again["restart_reason"]) == (True, "")
        assert not causes.next_attempt(result, folder, supervised=False)["restart"]
    # The last attempt that has ended counts, whatever its number: the same step twice.
    (folder / "attempts/2").mkdir(parents=True)
    (folder / "attempts/2/result.json").write_text(json.dumps(result))
    twice = causes.next_attempt(result, folder, supervised=True)
    assert (twice["restart"], twice["restarts_left"] > 0) == (False, True)
    assert "step 7" in twice["restart_reason"]
