"""Training jobs from Python: start one, follow it, look at it, stop it.

    from train.cli.job import run

    result = run("main.py", ["--epochs", "5"], inventory="inventory/lab", on_event=print)
    print(result.state, result.metrics)

The same playbooks are run as from the command line; what this module adds is the job's events as
they come, in one process, and further attempts where one fails that is worth it.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from train.cli import playbooks, runs
from train.cli.ansible_options import Inventory
from train.cli.events import Event, Result
from train.gang import leasing, reports
from train.gang.plan.ranks import MANIFEST_FILE, PlanError, choose_job
from train.gang.plan.staging import WORKER, find_includes, find_script
from train.gang.watch import follow as watch
from train.gang.watch import restarts
from train.host import records

#: There from the start until the end was told: a result beside it may be followed by an attempt.
UNDECIDED_FILE = ".undecided"
#: The module after whose task ranks may run on the hosts.
_STARTED = "rank_start"
#: Seconds between two looks for a lost host.
_LOOK_AGAIN = 2.0
#: Seconds by which the next attempt is put off at most where two control nodes got in each other's
#: way.
_JITTER = 5.0
#: How often a job is taken up again whose playbook was killed.
_BROKEN_OFF = 3


class Job:
    """A job that is followed, through all its attempts.

    Args:
        name: its id.
        playbook: ``train.yml`` or ``attach.yml``.
        inventory: see ansible_options.Inventory.
        variables: the role's variables.
        first: whether the job is new, and these are kept for later attempts.
        more: of these, what holds for the first playbook alone.

    Raises:
        FileNotFoundError: there is no such inventory.
    """

    def __init__(
        self,
        name: str,
        playbook: str,
        inventory: Inventory,
        variables: Mapping[str, Any],
        first: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.inventory = inventory
        self.run_dir = runs.run_dir_of(name, variables)
        self.attaching = playbook == "attach.yml"
        self._new = first
        self._playbooks = 0
        if first:
            runs.keep(name, variables)
        self.variables = {**runs.with_kept(name, variables), "train_job_id": name}
        self.variables["train_job_runs_dir"] = str(self.run_dir.parent)
        # What was told to be the end is not taken up again by looking at it.
        there = (self.run_dir / restarts.RESULT_FILE).exists() and not self._undecided.exists()
        self._decided = self.attaching and there
        self._patient = True
        self._broken_off = 0
        self._offset = 0
        if self.attaching and self._events_path.exists():
            self._offset = self._events_path.stat().st_size
        self._over: Result | None = None
        self._failed: Result | None = None  # the last attempt, while there is to be another one
        self._failed_at = self._next_at = self._jitter = 0.0
        self._begin(playbook, more or {})

    def _begin(self, playbook: str, more: Mapping[str, Any]) -> None:
        self._attached = playbook == "attach.yml"
        self._playbooks += 1
        self._tasks_told = self._warnings_told = 0
        self._result_before = self._result_time()
        self._running = True
        given = {**self.variables, "train_job_supervised": not self._decided, **more}
        self._playbook = playbooks.Playbook(playbook, self.inventory, given)

    @property
    def _undecided(self) -> Path:
        return self.run_dir / UNDECIDED_FILE

    @property
    def _started(self) -> bool:
        """Whether anything of this attempt may run on a host."""
        return self._attached or _STARTED in self._playbook.outcome.called

    @property
    def _events_path(self) -> Path:
        return self.run_dir / watch.EVENTS_FILE

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield what is new, after waiting ``timeout`` seconds at most; nothing is a valid answer.

        ``ended`` tells whether more can come.
        """
        self._playbook.wait(timeout)
        if not (self._decided or self.ended) and self.run_dir.is_dir():
            with contextlib.suppress(OSError):
                self._undecided.touch()
        for task in self._playbook.outcome.tasks[self._tasks_told :]:
            self._tasks_told += 1
            yield Event("task", self.name, task.rpartition("| ")[2])
        for line in self._playbook.outcome.warnings[self._warnings_told :]:
            self._warnings_told += 1
            about = {"kind": "warning", "task": None, "text": f"warning: {line}"}
            yield Event("notice", self.name, "", about)
        for line in self._new_lines():
            try:
                data = json.loads(line)
            except ValueError:
                continue
            kind = next((name for name in ("straggler", "notice") if name in data), "rank")
            about = data.get(kind, data)
            yield Event(kind, self.name, str(about["task"] or ""), about)
        if self._over is not None:
            return
        if self._running and not self._playbook.running:
            self._running = False
            result = self._outcome()
            if result is None:
                self._begin("attach.yml", {})
            else:
                yield from self._conclude(result)
        if not self._running and self._over is None and time.monotonic() >= self._next_at:
            self._again()

    def _conclude(self, result: Result) -> Iterator[Event]:
        """Go on as was decided when a playbook has ended with ``result``."""
        now = time.monotonic()
        if result.state == "unwatched":
            self._over = result
            return
        if self._failed is not None and self._playbook.outcome.overtaken:
            # Another control node starts the attempt: this one follows it.
            self._failed, self._jitter = None, _JITTER
            self._begin("attach.yml", {})
            return
        if self._failed is not None and result.state in ("refused", "unreachable"):
            self._wait_or_give_up(self._failed, result, now)
            return
        written = self._written()
        if not (written and written["restart"]):
            why_not = written["restart_reason"] if written else ""
            told = f"\nnot started again: {why_not}" if why_not else ""
            self._end(replace(result, message=result.message + told))
            return
        self._failed, self._failed_at = result, now
        self._next_at = now + written["restart_delay"] + random.uniform(0.0, self._jitter)
        data = {
            "attempt": written["attempts"] + 1,
            "delay": written["restart_delay"],
            "cause": written["cause"],
            "message": result.message,
        }
        yield Event("restart", self.name, written["culprit"] or "", data)

    def _wait_or_give_up(self, failed: Result, refused: Result, now: float) -> None:
        """A restart was refused: a lost host may come back."""
        manifest = self._manifest() or {"policy": {"host_wait": 0}}
        members = {rank["host"] for rank in manifest.get("ranks", ())}
        if members and members <= set(self._playbook.outcome.unreachable):
            # The control node itself has no network: that says nothing about the hosts.
            self._failed_at, self._next_at = now, now + _LOOK_AGAIN
            return
        if self._patient or now - self._failed_at < float(manifest["policy"]["host_wait"]):
            self._next_at = now + _LOOK_AGAIN
            return
        message = f"{failed.message}\ncould not be started again: {refused.message}"
        # What the attempt has left may have made room already for the one that was refused.
        last = restarts.last_result(self.run_dir)
        if last is not None:
            path = self.run_dir / restarts.RESULT_FILE
            ended = {"message": message, "restart": False, "restart_reason": refused.message}
            records.write_json(str(path), {**last, **ended})
            playbooks.run_playbook("over.yml", self.inventory, self.variables)
        self._end(replace(failed, message=message))

    def _again(self) -> None:
        """Start the next attempt; as long as lost hosts are waited for, only with all of them."""
        manifest = self._manifest()
        assert manifest is not None
        policy = manifest["policy"]
        waited = time.monotonic() - self._failed_at
        self._patient = waited < float(policy["host_wait"])
        given = {
            "train_job_attempt": int(manifest["attempt"]) + 1,
            "train_job_min_workers": 0 if self._patient else int(policy["min_workers"]),
        }
        self._begin("train.yml", given)

    def _read(self, name: str) -> dict[str, Any] | None:
        return records.read_json(str(self.run_dir / name))

    def _manifest(self) -> dict[str, Any] | None:
        return self._read(MANIFEST_FILE)

    def _written(self) -> dict[str, Any] | None:
        """Return what the playbook that has just ended wrote as the job's result."""
        return (
            self._read(restarts.RESULT_FILE) if self._result_time() != self._result_before else None
        )

    def _new_lines(self) -> list[str]:
        try:
            with self._events_path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        complete = data.rpartition(b"\n")[0]
        self._offset += len(complete) + 1 if complete else 0
        return complete.decode(errors="replace").splitlines()

    def _result_time(self) -> int | None:
        try:
            return (self.run_dir / restarts.RESULT_FILE).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    @property
    def ended(self) -> bool:
        """Whether the job is over, and no attempt follows."""
        return self._over is not None

    def leave(self) -> Result:
        """Stop following; the job goes on, or what was not started stays so."""
        down = self._failed is not None and not self._running
        self._playbook.close(self._log)
        if not self._started and self._failed is None:
            self._forget()
            return self._end(self._result("left", "nothing had been started"))
        told = "is down: attach to it to go on" if down else "runs on: attach to it or stop it"
        self._over = self._result("left", f"job {self.name} {told}")
        return self._over

    def stop(self) -> Result:
        """Stop following and end the job on every host."""
        self._playbook.close(self._log)
        if not self._started and self._failed is None:
            self._forget()
            return self._end(self._result("stopped", "nothing had been started"))
        outcome = stop(self.name, self.inventory, self.variables)
        if outcome.code:
            return self._end(self._result("failed", "; ".join(failures_of(outcome))))
        return self._end(self._result("stopped", "the job was stopped on every host"))

    def _end(self, result: Result) -> Result:
        """Tell ``result`` as the end: no attempt follows, whoever looks at the job later."""
        self._over = result
        self._undecided.unlink(missing_ok=True)
        return result

    def _forget(self) -> None:
        """Take away what a job has left here that never started, so that its id is free again."""
        self._undecided.unlink(missing_ok=True)
        if not self._new:
            return
        (self.run_dir / runs.VARIABLES_FILE).unlink(missing_ok=True)
        leasing.forget(self.run_dir)

    @property
    def _log(self) -> Path | None:
        return self.run_dir / "ansible.log" if self._started and self.run_dir.is_dir() else None

    def _result(self, state: str, message: str) -> Result:
        return Result(self.name, state, message, {}, [], self.run_dir)

    def close(self) -> Result:
        """Return how the job ended, once ``ended`` is true; until then, wait."""
        while self._over is None:
            for _ in self.events(1.0):
                pass
        return self._over

    def _outcome(self) -> Result | None:
        """Return what the playbook that has ended came to; None where the job is to be taken up.

        A playbook that was killed after the start says nothing about the job.
        """
        outcome = self._playbook.close(self._log)
        written = self._written()
        if written is not None:
            return Result(
                self.name,
                written["state"],
                written["message"],
                written["metrics"],
                written["ranks"],
                self.run_dir,
                written["attempts"],
            )
        if not self._started and not (self.run_dir / MANIFEST_FILE).exists():
            self._forget()
        told = failures_of(outcome) or ["ansible-playbook broke off:", *outcome.last_words]
        message = "\n".join(told)
        # A host that is lost counts as one, also where the gang goes on without it.
        watched = outcome.left_running
        if not self._started or (self.attaching and self._playbooks == 1 and not watched):
            return self._result("unreachable" if outcome.unreachable else "refused", message)
        if not (outcome.failures or outcome.left_running) and self._broken_off < _BROKEN_OFF:
            self._broken_off += 1
            return None
        # What broke here is no reason to end the job.
        return self._result("unwatched", f"{message}\nleft running: attach again")


def failures_of(outcome: playbooks.Outcome) -> list[str]:
    """Return the messages of a playbook's failures; those that many hosts share stand once."""
    told = [f"{host} does not answer: {text}" for host, text in outcome.unreachable.items()]
    shared: dict[str, list[str]] = {}
    for failure in outcome.failures:
        host, _, text = failure.partition(": ")
        shared.setdefault(text, []).append(host)
    return told + [f"{', '.join(hosts)}: {text}" for text, hosts in shared.items()]


def start(
    script: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    include: Sequence[str | Path] = (),
    inventory: Inventory = None,
    job: str = "",
    variables: Mapping[str, Any] | None = None,
) -> Job:
    """Start a job and return it, to be followed with ``events`` and ended with ``close``.

    Args:
        script: a file or directory of this machine; None for the project's own train/worker.py.
        arguments: the script's.
        include: files and folders of this machine that are staged beside the script.
        inventory: see ansible_options.Inventory.
        job: its id; empty to have one made.
        variables: of the role train_job, and any other of Ansible's.

    Raises:
        PlanError: the script, an included file or the id cannot be used; nothing was started.
        FileNotFoundError: there is no such inventory.
    """
    chosen = dict(variables or {})
    if script is not None:
        chosen["train_job_script"] = str(Path(script).expanduser().absolute())
    folder, entry = find_script(str(chosen.get("train_job_script", WORKER)))
    given = [str(path) for path in include] or chosen.get("train_job_include") or []
    included = find_includes(given)
    if included:
        chosen["train_job_include"] = [str(path) for path in included]
    if arguments:
        chosen["train_job_args"] = list(arguments)
    name, _ = choose_job(job, folder / entry, runs.run_dir_of("", chosen))
    return Job(name, "train.yml", inventory, chosen, first=True)


def follow(job: Job, on_event: Callable[[Event], None] | None = None) -> Result:
    """Follow ``job`` to its end and return how it ended.

    Raises:
        KeyboardInterrupt: as it came; the job goes on, no process of Ansible is left here.
    """
    try:
        while not job.ended:
            for event in job.events():
                if on_event is not None:
                    on_event(event)
    except BaseException:
        job.leave()
        raise
    return job.close()


def run(
    script: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    include: Sequence[str | Path] = (),
    inventory: Inventory = None,
    job: str = "",
    variables: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Train: start a job, follow it to its end, bring its results home.

    The arguments are those of ``start``.

    Args:
        on_event: called with every event as it comes, in this thread.

    Raises:
        PlanError, FileNotFoundError, KeyboardInterrupt: see ``start`` and ``follow``.
    """
    started = start(
        script, arguments, include=include, inventory=inventory, job=job, variables=variables
    )
    return follow(started, on_event)


def attach(
    job: str,
    *,
    inventory: Inventory = None,
    variables: Mapping[str, Any] | None = None,
) -> Job:
    """Return a job that runs already, to be followed; any control node with the inventory can.

    Raises:
        FileNotFoundError: there is no such inventory.
    """
    return Job(job, "attach.yml", inventory, dict(variables or {}))


def restart(
    job: str,
    *,
    inventory: Inventory = None,
    variables: Mapping[str, Any] | None = None,
) -> Job:
    """Start a job again that has failed or was stopped, from its checkpoints, whatever the cause.

    Raises:
        PlanError: the job still runs, or this control node knows nothing of it.
        ReportError: what a host reports of its rank is malformed.
        FileNotFoundError: there is no such inventory.
    """
    chosen = dict(variables or {})
    path = runs.run_dir_of(job, chosen) / MANIFEST_FILE
    manifest = records.read_json(str(path))
    if manifest is None:
        raise PlanError(f"there is no {path}: attach to job {job} first")
    _, hosts = status(job, inventory, chosen)
    phases = {name: reports.seen(told)["state"]["phase"] for name, told in hosts.items()}
    alive = [name for name, phase in phases.items() if phase in records.ALIVE_PHASES]
    if alive:
        raise PlanError(f"job {job} runs on {', '.join(alive)}: attach to it, or stop it first")
    more = {"train_job_attempt": int(manifest["attempt"]) + 1, "train_job_force": True}
    return Job(job, "train.yml", inventory, chosen, more=more)


def status(
    job: str = "",
    inventory: Inventory = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[playbooks.Outcome, dict[str, Any]]:
    """Return the outcome of the status playbook and what each inventory host said of its rank.

    Args:
        job: its id; empty for the newest job of each host.
    """
    outcome = playbooks.run_playbook(
        "status.yml",
        inventory,
        {**runs.with_kept(job, variables), "train_job_id": job},
    )
    return outcome, outcome.results.get("state", {})


def stop(
    job: str,
    inventory: Inventory = None,
    variables: Mapping[str, Any] | None = None,
) -> playbooks.Outcome:
    """End every process of a job on every host, and return the outcome of the stop playbook."""
    return playbooks.run_playbook(
        "stop.yml",
        inventory,
        {**runs.with_kept(job, variables), "train_job_id": job},
    )


__all__ = [
    "Event",
    "Job",
    "PlanError",
    "Result",
    "attach",
    "follow",
    "restart",
    "run",
    "start",
    "status",
    "stop",
]
