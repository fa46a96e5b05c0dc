"""The reaction of a followed job to playbooks that break off, without Ansible."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.cli import inventories, playbooks
from train.cli.ansible_options import AnsibleOptions
from train.cli.job import Job, keep, status, stop, with_kept
from train.gang import login_failures
from train.gang.login_failures import LoginFailure
from train.gang.plan import withdrawal

STARTED = playbooks.START
AWAY = login_failures.failure("no-route")
POLICY = {"max_restarts": 3, "restart_delay": 0, "host_wait": 60, "min_workers": 0}
MANIFEST: dict[str, Any] = {
    "attempt": 1,
    "attempts": [{"attempt": 1, "staged": True}],
    "policy": POLICY,
}


class Playbooks:
    """Replaces the module playbooks: its playbooks end with given outcomes, one after another."""

    def __init__(self, *outcomes: playbooks.PlaybookOutcome | None) -> None:
        self._outcomes = iter(outcomes)
        # Names and variables of the playbooks that were followed, and of those run to their end.
        self.begun: list[tuple[str, dict[str, Any]]] = []
        self.run: list[tuple[str, dict[str, Any]]] = []
        self.unending = False
        self._playbooks: list[Any] = []

    def begin(self, name: str, inventory: Path, variables: dict[str, Any]) -> Any:
        self.begun.append((name, variables))
        given = next(self._outcomes)
        playbook = SimpleNamespace(outcome=given or playbooks.PlaybookOutcome(), ended=bool(given))
        playbook.wait = lambda timeout: playbook.ended and not self.unending
        playbook.close = lambda log=None: playbook.outcome
        self._playbooks.append(playbook)
        return playbook

    def outcome(self, number: int, outcome: playbooks.PlaybookOutcome) -> None:
        """Set the current outcome of the playbook that was the ``number``-th to start, from 0."""
        self._playbooks[number].outcome = outcome

    def end(self, number: int, outcome: playbooks.PlaybookOutcome) -> None:
        """End the playbook that was the ``number``-th to start, from 0."""
        self._playbooks[number].outcome, self._playbooks[number].ended = outcome, True

    def run_playbook(self, name: str, inventory: Path, variables: Any) -> playbooks.PlaybookOutcome:
        self.run.append((name, variables))
        return playbooks.PlaybookOutcome(code=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a job that was started with a separate root."""
    run_dir = tmp_path / "runs/mine"
    run_dir.mkdir(parents=True)
    (run_dir / "manifest.json").write_text(json.dumps(MANIFEST))
    (run_dir / "code.tar.gz").touch()
    keep("mine", {**variables(tmp_path), "train_job_root": "/data/train"})
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
    keep("mine", {**given, **templates, **data, "train_job_address": "{ {a}"})
    used = with_kept("mine", variables(tmp_path))
    assert used == {**given, **data, "train_job_address": "{ {a}", "train_job_id": "mine"}
    again = {**variables(tmp_path), "train_job_python": "{{ mine }}"}
    assert with_kept("mine", again)["train_job_python"] == "{{ mine }}"


Follow = Callable[..., tuple[Job, Playbooks]]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> Follow:
    def begin(*outcomes: playbooks.PlaybookOutcome | None) -> tuple[Job, Playbooks]:
        fake = Playbooks(*outcomes)
        monkeypatch.setattr(playbooks, "Playbook", fake.begin)
        monkeypatch.setattr(playbooks, "run_playbook", fake.run_playbook)
        job = Job("mine", tmp_path, variables(tmp_path))
        job._begin("train.yml", train_job_attempt=2)
        return job, fake

    return begin


def pump(job: Job, times: int = 3) -> None:
    for _ in range(times):
        list(job.events(0.0))


def killed(lost: dict[str, LoginFailure] | None = None) -> playbooks.PlaybookOutcome:
    """Return the outcome of an ansible-playbook that was killed after the start."""
    return playbooks.PlaybookOutcome(-9, called={STARTED}, unreachable=lost or {})


def planned(code: int | None) -> playbooks.PlaybookOutcome:
    """Return the outcome of an ansible-playbook that has planned the second attempt."""
    return playbooks.PlaybookOutcome(
        code, results={"gang_plan": {"node-1": {"job": "mine", "attempt": 2}}}
    )


def plan_again(folder: Path) -> None:
    """Change a job's folder like the plan of a second attempt."""
    (folder / "result.json").write_text(json.dumps({"state": "failed", "attempts": 1}))
    withdrawal.set_aside(folder, 1)
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "attempt": 2}))


def is_as_before(folder: Path) -> bool:
    """Return whether a job's folder is in the state after its first attempt."""
    files = [folder / "manifest.json", folder / "result.json"]
    attempts = [json.loads(path.read_text()) for path in files if path.exists()]
    numbers = [about.get("attempt", about.get("attempts")) for about in attempts]
    return numbers == [1, 1] and not (folder / "attempts").exists()


@pytest.mark.parametrize("end", ["stop", "leave"])
def test_a_restart_given_up_early_loses_nothing(follow: Follow, folder: Path, end: str) -> None:
    job, fake = follow(None)
    pump(job)
    assert getattr(job, end)().message == "nothing was started"
    left = {path.name for path in folder.iterdir()}
    assert left >= {"manifest.json", "code.tar.gz", "variables.json"}
    assert fake.run == []


@pytest.mark.parametrize("outcome", [planned(code=None), None], ids=["reported", "not reported"])
@pytest.mark.parametrize("end", ["stop", "leave"])
def test_what_was_taken_before_the_start_is_given_back(
    follow: Follow, folder: Path, end: str, outcome: playbooks.PlaybookOutcome | None
) -> None:
    job, fake = follow(outcome)
    plan_again(folder)
    fake.unending = True
    pump(job)
    assert getattr(job, end)().message == "nothing was started"
    assert [name for name, _ in fake.run] == ["unstage.yml"]
    assert is_as_before(folder)


def test_a_playbook_that_was_killed_before_the_start_leaves_nothing_taken(
    follow: Follow, folder: Path
) -> None:
    job, fake = follow(planned(code=-9))
    plan_again(folder)
    pump(job)
    assert job.result is not None
    assert job.result.state == "refused"
    assert [name for name, _ in fake.run] == ["unstage.yml"]
    assert is_as_before(folder)


def test_a_plan_that_is_undone_already_is_left_alone(follow: Follow, folder: Path) -> None:
    job, fake = follow(planned(code=None))  # the manifest is that of the first attempt
    pump(job)
    assert job.leave().message == "nothing was started"
    assert fake.run == []
    assert (folder / "code.tar.gz").exists()


def test_a_job_that_was_stopped_while_it_waited_ends_as_stopped(
    follow: Follow, folder: Path
) -> None:
    how = "was stopped by anna"
    refused: Any = {"failures": {"nothing was started": ["node-1"]}, "stopped": how}
    job, fake = follow(playbooks.PlaybookOutcome(2, **refused))
    pump(job)
    assert job.result is not None
    assert (job.result.state, fake.run) == ("stopped", [])
    assert job.result.message == f"nothing was started: the job {how}"


STOPPED: Any = {
    **{"state": "stopped", "message": "the job was stopped by anna", "root_cause": None},
    **{"cause": None, "step": None, "metrics": {}, "ranks": [], "attempts": 1},
    **{"restart": False, "restart_reason": "", "restarts_left": 3, "restart_delay": 0.0},
}


def test_a_job_that_is_stopped_is_followed_to_its_end(follow: Follow) -> None:
    ended = playbooks.PlaybookOutcome(2, called={STARTED})
    ended.note_end(STOPPED)
    job, fake = follow(killed(), None, playbooks.PlaybookOutcome(code=0))
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
    monkeypatch.setattr("train.cli.job._END_LIMIT_FAILED", 0.0)
    lost = playbooks.PlaybookOutcome(4, unreachable={"node-3": AWAY})
    job, _ = follow(killed(), None, lost)
    pump(job)
    result = job.stop()
    assert result.state == "failed"
    assert "node-3 is unreachable: the host cannot be reached" in result.message


def down(folder: Path) -> playbooks.PlaybookOutcome:
    """Return the outcome of a playbook that waits between two attempts, with the result written."""
    failed: Any = {**STOPPED, "state": "failed", "message": "fell", "restart": True}
    (folder / "result.json").write_text(json.dumps(failed))
    outcome = playbooks.PlaybookOutcome(called={STARTED})
    outcome.note_end(failed)
    return outcome


def test_a_job_is_stopped_between_two_attempts(follow: Follow, folder: Path) -> None:
    job, fake = follow(None, playbooks.PlaybookOutcome(code=0))
    fake.outcome(0, down(folder))
    pump(job)
    job.request_stop()
    pump(job)
    assert job.result is None, "the role finds out, and writes how the job ended"
    assert [name for name, _ in fake.begun] == ["train.yml", "stop.yml"]
    stopped = playbooks.PlaybookOutcome(2, called={STARTED})
    stopped.note_end(STOPPED)
    fake.end(0, stopped)
    assert job.stop().message == "the job was stopped by anna"


def test_a_job_that_is_left_between_two_attempts_is_down(follow: Follow, folder: Path) -> None:
    job, fake = follow(None)
    fake.outcome(0, down(folder))
    pump(job)
    assert job.leave().message.startswith(
        "the job is between two attempts: attach to resume it with `"
    )
    assert fake.run == []


def test_a_playbook_that_was_killed_between_two_attempts_is_followed_by_another(
    follow: Follow, folder: Path
) -> None:
    killed_between = down(folder)
    killed_between.code = -9
    job, fake = follow(killed_between, None)
    pump(job)
    assert [name for name, _ in fake.begun] == ["train.yml", "attach.yml"]
    assert job.result is None


@pytest.mark.parametrize("lost", [{}, {"node-3": AWAY}])
def test_attached_three_times_then_left(
    follow: Follow, folder: Path, lost: dict[str, LoginFailure]
) -> None:
    # A gang may continue without a lost host, but that does not explain a killed playbook.
    job, fake = follow(killed(lost), *[playbooks.PlaybookOutcome(code=-9)] * 3)
    pump(job, 6)
    assert [name for name, _ in fake.begun] == ["train.yml", *["attach.yml"] * 3]
    assert job.result is not None
    assert job.result.state == "unwatched"
    assert "left running: attach again with `" in job.result.message
    assert fake.run == [], "a failure here does not end the job"


@pytest.mark.parametrize("action", [playbooks.START, playbooks.WATCH])
def test_later_commands_use_the_inventory_with_which_the_ranks_were_reached(
    action: str, follow: Follow, tmp_path: Path, folder: Path
) -> None:
    inventories.keep(folder, AnsibleOptions(("/old",), words=("--user=a",)), {}, controller="w0")
    job, fake = follow(playbooks.PlaybookOutcome())
    fake.unending = True
    pump(job)
    assert (inventories.kept(folder) or {})["inventory"] == ["/old"], "nothing was reached yet"
    fake.outcome(0, playbooks.PlaybookOutcome(called={action}))
    pump(job)
    assert inventories.kept(folder) == {
        **{"inventory": [str(tmp_path)], "options": [], "asked": [], "variables": {}},
        "controller": "w0",
    }
    (folder / "connection.json").write_text("{}")
    pump(job)
    assert (inventories.kept(folder) or {})["inventory"] == [str(tmp_path)], "it was damaged"


def test_variables_of_the_start_hold_for_status_and_stop(follow: Follow, tmp_path: Path) -> None:
    _, fake = follow(None)
    status("mine", tmp_path, variables(tmp_path))
    stop("mine", tmp_path, {**variables(tmp_path), "train_job_root": "/other"})
    status("", tmp_path, variables(tmp_path))
    roots = [given.get("train_job_root") for _, given in fake.run]
    assert roots == ["/data/train", "/other", None]


def test_the_id_can_be_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Playbooks(None)
    monkeypatch.setattr(playbooks, "Playbook", fake.begin)
    job = Job.start(variables={**variables(tmp_path), "train_job_id": "mine"})
    assert (job.name, job.run_dir) == ("mine", tmp_path / "runs/mine")
    ((_, given),) = fake.begun
    assert given["train_job_id"] == "mine"


def test_variables_without_a_value_count_as_not_set(tmp_path: Path) -> None:
    names = ("train_job_script", "train_job_module", "train_job_requirements", "train_job_include")
    given = {**variables(tmp_path), **dict.fromkeys(names)}
    job = Job.create(variables=given, job="mine")
    assert "train_job_script" not in job.variables
    assert job.variables["train_job_module"] == job.variables["train_job_requirements"] == ""
    job.close()


def test_a_script_is_not_run_as_the_module_of_the_inventory(tmp_path: Path) -> None:
    script = tmp_path / "code/main.py"
    script.parent.mkdir()
    script.touch()
    job = Job.create(script, variables=variables(tmp_path), job="mine")
    assert job.variables["train_job_module"] == ""
    job.close()


def test_a_relative_script_is_one_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/main.py").touch()
    monkeypatch.chdir(tmp_path)
    given = {"train_job_script": "code/main.py", "train_job_runs_dir": "results"}
    job = Job.create(variables=given, job="mine")
    assert job.run_dir == tmp_path / "results/mine"
    saved = with_kept("mine", {"train_job_runs_dir": str(tmp_path / "results")})
    assert saved["train_job_script"] == job.variables["train_job_script"]
    assert saved["train_job_script"] == str(tmp_path / "code/main.py")
    job.close()
