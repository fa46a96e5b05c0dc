"""Starts, follows, checks and stops training jobs from Python (see docs/jobs.md).

This module runs the playbooks, yields events as they happen, and follows a job through its restarts
after recoverable failures.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from train.cli import inventories, playbooks, suggesting, watch_lock
from train.cli.ansible_options import (
    DATA,
    TEMPLATE,
    AnsibleOptions,
    Inventory,
    Variables,
    mentions,
    options_of,
    plain_variables,
)
from train.gang import REPOSITORY, job_records, local_paths, reports, suggestions
from train.gang.errors import UserError
from train.gang.job_records import EVENTS_FILE, MANIFEST_FILE, RankResult, ResultRecord
from train.gang.packages import requested
from train.gang.plan import withdrawal
from train.gang.plan.script_files import WORKER, find_includes, find_script
from train.gang.run_folders import check_id, choose_job
from train.gang.variables import job_variables
from train.host import json_files, records

#: Seconds to wait for the start of a gang to finish before leaving the job.
_START_LIMIT = 60.0
#: Seconds in which the watch of a stopped job must fetch all logs and end: if the job was stopped
#: on every host, and if it could not be stopped on some hosts.
_END_LIMIT, _END_LIMIT_FAILED = 300.0, 30.0
#: Maximum number of times to attach again to a job whose playbook was killed.
_BROKEN_OFF = 3
#: The output of a watch in the background, in the job's folder.
WATCH_LOG = "watch.log"
#: The role's variables that a job was started with, for later commands.
VARIABLES_FILE = "variables.json"
_RUNS_DIR = "train_job_runs_dir"
#: The role's default of this variable: in the clone, or else in the current folder.
_DEFAULT_RUNS_DIR = Path("runs") if suggestions.is_installed() else REPOSITORY / "runs"
#: Variables that may contain secrets. The script's environment is stored on the hosts.
_SECRET = ("train_job_environment", "train_job_notify_command", "train_job_notify_webhook")


@dataclass(frozen=True)
class Event:
    """Something new about a job.

    Attributes:
        kind: ``task`` (Ansible is at another task), ``rank`` (an update of a rank), ``restart``
            (the attempt failed, and another one follows), ``straggler`` (a rank that keeps the
            others waiting) or ``notice`` (about the watch itself, such as an unreachable host).
        task: the rank, such as ``worker-0``; for ``kind == "task"`` the name of Ansible's task;
            for a restart the rank that failed first, or empty.
        phase: the step in progress before the ranks run, for display; only for ``kind == "task"``.
        data: the other fields of ``--json``, see docs/formats.md.
    """

    kind: str
    job: str
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a job.

    Attributes:
        state: ``completed``, ``failed``, ``stopped``; ``refused`` (nothing was started because of
            wrong input or a host that is not ready); ``unreachable`` (nothing was started because
            of an unreachable host); ``left`` (the user left the job running); ``unwatched`` (the
            watch ended by itself and the job continues); ``detached`` (all ranks have started, and
            the watch continues in the background).
        metrics: the chief's last metrics, such as ``test_accuracy``.
        ranks: see ``result.json`` in docs/formats.md.
        run_dir: the job's folder on the control node.
        attempts: how often the gang was started; 0 if unknown.
        doubts: reasons why a completed job may not have done what its user intended.
        notes: further information about the end, such as files that remain on hosts.
        strict: whether a doubt counts as a failure (``train_job_strict``).
    """

    job: str
    state: str
    message: str
    metrics: Mapping[str, float | str]
    ranks: Sequence[RankResult]
    run_dir: Path
    attempts: int = 0
    doubts: Sequence[str] = ()
    notes: Sequence[str] = ()
    strict: bool = False


class Followed(Protocol):
    """A job whose ``events`` are read until it has a ``result``."""

    name: str
    run_dir: Path
    result: Result | None

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield the new events, after waiting for up to ``timeout`` seconds."""

    def leave(self) -> Result:
        """Stop following; the job keeps running."""

    def request_stop(self) -> None:
        """Begin to stop the job on every host; ``events`` continue until it has a result."""

    def close(self) -> None:
        """Let other commands watch the job, once this one does not follow it anymore."""


def event_of(job: str, line: bytes) -> Event | None:
    """Return the event in a line of ``events.jsonl``, or None if it is not JSON."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    kinds = ("straggler", "notice", "restart")
    kind = next((name for name in kinds if name in data), "rank")
    about = data.get(kind, data)
    task = about["root_cause" if kind == "restart" else "task"]
    return Event(kind, job, str(task or ""), about)


def result_of(ended: ResultRecord, run_dir: Path) -> Result:
    """Return the result of a job from its ``result.json``, if no attempt follows."""
    message, why_not = ended["message"], ended["restart_reason"]
    if why_not and why_not not in message:
        message = f"{message}\nnot restarted: {why_not}"
    reported = (ended["metrics"], ended["ranks"], run_dir, ended["attempts"])
    remarks = (ended.get("doubts", []), ended.get("notes", []), ended.get("strict", False))
    return Result(run_dir.name, ended["state"], message, *reported, *remarks)


def run_dir_of(job: str, variables: Variables) -> Path:
    """Return a job's local folder, or the folder of all jobs if ``job`` is empty.

    Raise UserError if ``job`` is not a valid job id, or train_job_runs_dir is not a path.
    """
    if job:
        check_id(job)
    runs_dir = variables.get(_RUNS_DIR, _DEFAULT_RUNS_DIR)
    if not isinstance(runs_dir, str | Path) or not str(runs_dir):
        raise UserError(
            f"{_RUNS_DIR} is {runs_dir!r}, but must be the path of a folder: use "
            f"-e {_RUNS_DIR}=FOLDER, or leave it out to use {_DEFAULT_RUNS_DIR}"
        )
    return local_paths.absolute(runs_dir).resolve() / job


def named(job: str, variables: Variables) -> str:
    """Return the job id that is given as ``job`` or as train_job_id, or '' if none is given.

    Raise UserError if both are given and they differ.
    """
    by_variable = str(variables.get("train_job_id") or "")
    if job and by_variable and job != by_variable:
        raise UserError(
            f"two ids were given for the job: {job}, and {by_variable} in train_job_id. Use "
            "only one"
        )
    return job or by_variable


def with_runs_dir(inventory: Inventory, variables: Variables | None) -> dict[str, Any]:
    """Return the variables, with train_job_runs_dir from the inventory if they do not contain it.

    Raise UserError if the variable cannot be read or differs between hosts.
    """
    found = dict(variables or {})
    if _RUNS_DIR in found or not mentions(inventory, _RUNS_DIR):
        return found
    folder = _of_inventory(inventory, found, _RUNS_DIR).get(_RUNS_DIR)
    return {**found, _RUNS_DIR: folder or str(_DEFAULT_RUNS_DIR)}


def _of_inventory(inventory: Inventory, variables: Variables, *names: str) -> dict[str, str]:
    """Return variables of the inventory whose values are text, if they are not empty.

    Relative paths mean the repository, in which Ansible runs. Ansible is run only if a file of the
    inventory mentions one of the variables. Raise UserError if one cannot be read or differs
    between hosts.
    """
    if not any(mentions(inventory, name) for name in names):
        return {}
    given = {**variables, "train_inventory_names": names}
    outcome = playbooks.run_playbook("inventory_variables.yml", inventory, given)
    if outcome.code:
        wanted = " and ".join(names)
        raise UserError("\n".join([f"cannot read {wanted} from the inventory:", *outcome.messages]))
    found = {}
    for number, name in enumerate(names):
        answers = sorted(outcome.results["debug"].items())
        by_host = {host: str(answer["msg"][number] or "") for host, answer in answers}
        values = dict.fromkeys(by_host.values())
        if len(values) > 1:
            each = "; ".join(f"{value or 'none'} on {host}" for host, value in by_host.items())
            raise UserError(
                f"{name} must be the same for the whole gang, but differs between hosts: {each}. "
                f"Set it in group_vars/all, or use -e {name}=VALUE"
            )
        if value := next(iter(values), ""):
            is_path = name in (_RUNS_DIR, "train_job_script") and not value.startswith("~")
            found[name] = str(REPOSITORY / value) if is_path else value
    return found


def host_python(variables: Variables) -> Path:
    """Return the ranks' interpreter on this machine, by default the one that setup.yml installs."""
    framework = str(variables.get("train_job_framework") or "tensorflow")
    python = variables.get("train_job_python") or job_variables.default_python(framework)
    return local_paths.absolute(str(python))


def keep(job: str, variables: Variables) -> None:
    """Write the role's ``variables`` into the job's folder, except possible secrets."""
    kept = {n: v for n, v in variables.items() if n.startswith("train_job_") and n not in _SECRET}
    json_files.write_json(str(run_dir_of(job, variables) / VARIABLES_FILE), kept, mode=0o600)


def with_kept(job: str, variables: Variables | None) -> dict[str, Any]:
    """Return ``variables``, the job's id, and the variables saved at its start, if known here.

    Saved values are never treated as templates. A saved value that contains Jinja is left out and
    must be given again, unless its variable is in DATA.
    """
    given = dict(variables or {})
    path = run_dir_of(job, given) / VARIABLES_FILE
    kept = (json_files.read_json(str(path)) or {}) if job else {}
    found = {
        name: value
        for name, value in kept.items()
        if name in DATA or not TEMPLATE.search(json.dumps(value))
    }
    return {**found, **given, "train_job_id": job}


class Job:
    """A job, followed through all its attempts: read ``events`` until it has a ``result``.

    Create it with ``start``, ``attach`` or ``restart``.

    Args:
        variables: of the role and of Ansible; those of a new job are saved for later commands.
    """

    def __init__(
        self, name: str, inventory: Inventory, variables: Variables, *, is_new: bool = False
    ) -> None:
        self.name = name
        self.inventory = options_of(inventory)
        variables = plain_variables(variables)
        self.run_dir = run_dir_of(name, variables)
        self._events_path = self.run_dir / EVENTS_FILE
        self._new = is_new
        self._connection_kept = False  # whether the connection by which ranks were reached is saved
        self._lock: watch_lock.WatchLock | None = None
        if is_new:
            self._take_lock()
            keep(name, variables)
            inventories.keep(self.run_dir, self.inventory, variables)
        self.variables = with_kept(name, variables)
        self.variables["train_job_runs_dir"] = str(self.run_dir.parent)
        self._broken_off = 0
        self._offset = 0
        self._attempt_before = 0  # the attempt that the manifest had before the playbook began
        self.result: Result | None = None
        self._may_refuse = True  # attaching can be refused only at first
        self._stop: playbooks.Playbook | None = None  # ends the ranks, while it runs
        self._stopping = False  # whether the job was asked to stop
        self._stop_noted = False
        self._stop_messages: list[str] = []
        self._end_by = float("inf")

    @classmethod
    def start(
        cls,
        script: str | Path | None = None,
        arguments: Sequence[str] = (),
        *,
        module: str = "",
        include: Sequence[str | Path] = (),
        requirements: str | Path = "",
        framework: str = "",
        inventory: Inventory = None,
        job: str = "",
        variables: Variables | None = None,
    ) -> Self:
        """Start a job and return it; follow it with ``follow`` or its ``events``.

        Args:
            script: a file or directory on this machine; None for the project's train/worker.py.
            module: the module for ``python -m``, such as ``trainer.task``; the script is then the
                directory that contains the package, by default the current one.
            include: files and folders on this machine to stage alongside the script.
            requirements: the file that lists the script's packages in addition to TensorFlow's;
                ``auto`` for the one next to the script.
            framework: ``tensorflow``, ``jax``, ``torch`` or ``none``; by default the variable
                train_job_framework.
            inventory: see ``Inventory``.
            job: the job's id, which may also be given as the variable train_job_id; by default one
                is generated.
            variables: of the role train_job, and any others of Ansible.

        Raises:
            UserError: the script, an included file, the requirements or the id cannot be used;
                nothing was started.
            FileNotFoundError: an inventory does not exist.
        """
        created = cls.create(
            script,
            arguments,
            module=module,
            include=include,
            requirements=requirements,
            framework=framework,
            inventory=inventory,
            job=job,
            variables=variables,
        )
        created._begin("train.yml")
        return created

    @classmethod
    def create(
        cls,
        script: str | Path | None = None,
        arguments: Sequence[str] = (),
        *,
        module: str = "",
        include: Sequence[str | Path] = (),
        requirements: str | Path = "",
        framework: str = "",
        inventory: Inventory = None,
        job: str = "",
        variables: Variables | None = None,
    ) -> Self:
        """Create the folder of a new job without starting it.

        For the arguments and errors see ``start``.
        """
        chosen = plain_variables(with_runs_dir(inventory, variables))
        if chosen.get("train_job_script", "") is None:  # null in YAML
            del chosen["train_job_script"]
        for name in ("train_job_module", "train_job_requirements"):
            if name in chosen:
                chosen[name] = chosen[name] or ""
        if script is None and "train_job_script" not in chosen:
            names = ("train_job_script", "train_job_module")
            chosen = {**_of_inventory(inventory, chosen, *names), **chosen}
        if module or script is not None:  # the inventory may name the module of another script
            chosen["train_job_module"] = module or chosen.get("train_job_module", "")
        module = str(chosen.get("train_job_module", ""))
        if script is None and module and "train_job_script" not in chosen:
            script = "."
        if script is not None:
            chosen["train_job_script"] = str(local_paths.absolute(script))
        found = find_script(str(chosen.get("train_job_script", WORKER)), module)
        given = [str(path) for path in include] or chosen.get("train_job_include") or []
        included = find_includes(given)
        if included:
            chosen["train_job_include"] = [str(path) for path in included]
        wanted = str(requirements or chosen.get("train_job_requirements", ""))
        if wanted:
            path = requested.find(wanted, found.folder)
            requested.read(path)
            chosen["train_job_requirements"] = str(path)
        if framework:
            chosen["train_job_framework"] = framework
        if arguments:
            chosen["train_job_args"] = [str(argument) for argument in arguments]
        name, _ = choose_job(named(job, chosen), found.path, run_dir_of("", chosen))
        return cls(name, inventory, chosen, is_new=True)

    @classmethod
    def attach(
        cls, job: str, *, inventory: Inventory = None, variables: Variables | None = None
    ) -> Self:
        """Follow a job that is already running; any control node with the inventory can do this.

        Raise UserError if another command of this control node watches the job.
        """
        inventory, chosen = _of_job(job, inventory, variables)
        attached = cls(job, inventory, chosen)
        attached._begin("attach.yml")
        return attached

    @classmethod
    def restart(
        cls, job: str, *, inventory: Inventory = None, variables: Variables | None = None
    ) -> Self:
        """Restart a job that has failed or was stopped, whatever the cause, from its checkpoints.

        Raise UserError if the job is still running, watched by another command or unknown here, and
        ReportError if a host's answer is malformed.
        """
        inventory, chosen = _of_job(job, inventory, variables)
        run_dir = run_dir_of(job, chosen)
        manifest = job_records.read_manifest(run_dir)
        if manifest is None:
            attach = suggestions.command("attach", suggesting.call_of(inventory, chosen), job=job)
            raise UserError(
                f"{run_dir / MANIFEST_FILE} does not exist: attach to the job first with `{attach}`"
            )
        _, hosts = status(job, inventory, chosen)
        seen = [(name, rank) for name, by in hosts.items() for rank in reports.all_seen(by)]
        alive = [name for name, rank in seen if rank["state"]["phase"] in records.ALIVE_PHASES]
        if alive:
            call = suggesting.call_of(inventory, chosen)
            attach, end = (suggestions.command(name, call, job=job) for name in ("attach", "stop"))
            raise UserError(
                f"job {job} is still running on {', '.join(alive)}: attach to it with "
                f"`{attach}`, or stop it first with `{end}`"
            )
        attempt = {"train_job_attempt": int(manifest["attempt"]) + 1, "train_job_force": True}
        again = cls(job, inventory, chosen)
        inventories.forget_controller(run_dir)
        again._begin("train.yml", **attempt)
        return again

    def _take_lock(self) -> None:
        """Lock the job's folder for other commands, if it exists. Raise WatchedError if it is."""
        if self._lock is None and self.run_dir.is_dir():
            self._lock = watch_lock.WatchLock(self.run_dir)
            if self._lock.was_killed:
                watch_lock.await_orphans(self.run_dir)

    def note_background(self) -> None:
        """Record for other commands that this process watches the job in the background."""
        self._take_lock()
        if self._lock is not None:
            self._lock.note(background=True)

    def close(self) -> None:
        """Let other commands watch the job, once this one does not follow it anymore."""
        if self._lock is not None:
            self._lock.close()

    def _begin(self, playbook: str, **more: Any) -> None:
        """Start a playbook that follows the job.

        Raise OSError if the inventory is missing, and WatchedError if another command of this
        control node watches the job.
        """
        self._take_lock()
        self._attached = playbook == "attach.yml"
        self._running = True
        if self._offset == 0 and self._events_path.exists():  # of earlier attempts
            self._offset = self._events_path.stat().st_size
        manifest = job_records.read_manifest(self.run_dir)
        self._attempt_before = int(manifest["attempt"]) if manifest else 0
        try:
            watching_host = inventories.controller_of(self.run_dir)
            deferred = {"train_job_controller": watching_host} if watching_host else {}
            given = {**self.variables, **deferred, **more}
            self._playbook = playbooks.Playbook(playbook, self.inventory, given)
        except OSError:
            self.forget()
            raise

    def _reattach(self) -> None:
        self._may_refuse = False
        self._begin("attach.yml")

    @property
    def _started(self) -> bool:
        """Whether any process of this attempt may be running on a host."""
        outcome = self._playbook.outcome
        return not outcome.is_down and (self._attached or playbooks.START in outcome.called)

    @property
    def _is_starting(self) -> bool:
        """Whether some ranks of the attempt may have started and others not yet."""
        return self._running and self._playbook.outcome.calling == playbooks.START

    @property
    def _is_down(self) -> bool:
        """Whether the job is between two attempts."""
        return self._playbook.outcome.is_down

    @property
    def _phase(self) -> str:
        """A short text for users about the playbook's current step, which may have many tasks."""
        outcome = self._playbook.outcome
        if self._attached and outcome.ended is None:
            return "searching the hosts for the job"
        planned = outcome.result("gang_plan").get("ranks", {})
        installs = outcome.result("gang_packages").get("installs", {})
        if installs and not planned:
            hosts = "1 host" if len(installs) == 1 else f"{len(installs)} hosts"
            return f"installing the script's packages on {hosts}"
        ranks = "1 rank" if len(planned) == 1 else f"{len(planned)} ranks"
        if playbooks.START in outcome.called:
            return f"starting {ranks}"
        return f"staging code for {ranks}" if planned else "checking the hosts"

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield the new events, after waiting for up to ``timeout`` seconds.

        Set ``result`` if the job has ended. Then one more call yields the last events.
        """
        over = self._playbook.wait(timeout)
        self._keep_connection()
        outcome = self._playbook.outcome
        while outcome.tasks:
            name = outcome.tasks.pop(0).rpartition("| ")[2]
            yield Event("task", self.name, name, phase=self._phase)
        while outcome.warnings:
            text = f"warning: {outcome.warnings.pop(0)}"
            yield Event("notice", self.name, "", {"kind": "warning", "task": None, "text": text})
        for text in outcome.take_waiting():
            yield Event("notice", self.name, "", {"kind": "login", "task": None, "text": text})
        for line in self._new_lines():
            if event := event_of(self.name, line):
                yield event
        if self.result is not None:
            self.close()
            return
        yield from self._follow_stop()
        if self._running and over:
            self._running = False
            outcome = self._playbook.close(self._log)
            if outcome.ended is None or outcome.ended["restart"]:
                self._without_result(outcome)
            else:
                self._end(result_of(outcome.ended, self.run_dir))

    def _keep_connection(self) -> None:
        """Save how the hosts are reached: if nothing is saved, and once the ranks were reached.

        The inventory may differ from that of the start.
        """
        if not self.run_dir.is_dir():
            return
        reached = bool(self._playbook.outcome.called & {playbooks.START, playbooks.WATCH})
        is_current = self._new or self._connection_kept or not reached
        if is_current and inventories.kept(self.run_dir) is not None:
            return
        with contextlib.suppress(OSError, watch_lock.WatchedError):
            self._take_lock()
            controller = inventories.controller_of(self.run_dir)
            inventories.keep(self.run_dir, self.inventory, self.variables, controller)
            self._connection_kept = reached

    def _without_result(self, outcome: playbooks.PlaybookOutcome) -> None:
        """Handle a playbook that ended without a final result.

        It was refused or killed, or its watch ended.
        """
        is_new = not (self._started or self._is_down)
        if not (self._started or outcome.failures or outcome.unreachable):
            self._give_back()  # it was killed
        if is_new and not (self.run_dir / MANIFEST_FILE).exists():
            self.forget()
        message = "\n".join(outcome.messages)
        refused = self._attached and self._may_refuse and outcome.ended is None
        if is_new and outcome.stopped:
            message = f"{self._nothing_started()}: the job {outcome.stopped}"
            self._end(self._result("stopped", message))
        elif is_new or (refused and not outcome.left_running):
            # A lost host counts as unreachable, even if the gang continues without it.
            self._end(self._result("unreachable" if outcome.unreachable else "refused", message))
        elif not self._attach_once_more(outcome):  # an error here must not end the job
            again = f"left running: attach again with `{self._command('attach')}`"
            self.result = self._result("unwatched", f"{message}\n{again}")

    def _attach_once_more(self, outcome: playbooks.PlaybookOutcome) -> bool:
        """Attach to the job again if its playbook was killed; return whether this was done."""
        if outcome.failures or outcome.left_running or self._broken_off == _BROKEN_OFF:
            return False
        self._broken_off += 1
        self._reattach()
        return True

    def _new_lines(self) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError), self._events_path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return  # incomplete line
                self._offset += len(line)
                yield line

    def leave(self) -> Result:
        """Stop following; the job keeps running.

        Wait for a start in progress, and release the resources of an attempt that has not started.
        """
        until = time.monotonic() + _START_LIMIT
        while self._is_starting and not self._playbook.wait(0.1) and time.monotonic() < until:
            pass
        was_running, is_down = self._running, self._is_down
        started = self._close()
        self.close()
        if not started:
            return self._end(self._result("left", self._nothing_started()))
        if was_running and self._playbook.outcome.calling == playbooks.START:
            outcome = stop(self.name, self.inventory, self.variables)
            message = "the start was interrupted, and the job was stopped on every host"
            return self._end(self._result("stopped", "\n".join([message, *outcome.messages])))
        attach, stop_it = self._command("attach"), self._command("stop")
        how = f"the job continues: attach to it with `{attach}`, or stop it with `{stop_it}`"
        if is_down:
            how = f"the job is between two attempts: attach to resume it with `{attach}`"
        self.result = self._result("left", how)
        return self.result

    def stop(self) -> Result:
        """Stop the job on every host, follow it to its end, and return its result."""
        self.request_stop()
        while self.result is None:
            for _ in self.events():
                pass
        return self.result

    def request_stop(self) -> None:
        """Begin to stop the job on every host; ``events`` continue until it has a result."""
        if self._stopping or self.result is not None:
            return
        self._stopping = True
        was_running = self._running
        if not (was_running and (self._started or self._is_down)):
            self._close()
        if was_running and (self._started or self._is_down):
            # Between two attempts, the role finds the stop request on the hosts.
            self._stop = playbooks.Playbook("stop.yml", self.inventory, self.variables)
            if not self._running:  # it has just started
                self._reattach()
        else:
            self._end(self._result("stopped", self._nothing_started()))

    def _follow_stop(self) -> Iterator[Event]:
        """Yield events about the stop, and abandon a watch that does not end in time after it."""
        if self._stop is not None and not self._stop_noted:
            self._stop_noted = True
            text = "stopping the job on every host"
            yield Event("notice", self.name, "", {"kind": "stop", "task": None, "text": text})
        if self._stop is not None and self._stop.wait(0.0):
            outcome, self._stop = self._stop.close(), None
            self._stop_messages = outcome.messages
            for line in outcome.messages:
                text = f"could not stop the job: {line}"
                yield Event("notice", self.name, "", {"kind": "stop", "task": None, "text": text})
            limit = _END_LIMIT_FAILED if outcome.messages else _END_LIMIT
            self._end_by = time.monotonic() + limit
        if time.monotonic() > self._end_by and self._running:
            self._running = False
            self._playbook.close(self._log)
            failed = "; ".join(self._stop_messages)
            if failed:
                self._end(self._result("failed", f"the job could not be stopped: {failed}"))
            else:
                attach = self._command("attach")
                message = (
                    "the job was stopped, but its end was not reported in time: check the "
                    f"job with `{attach}`"
                )
                self.result = self._result("unwatched", message)

    def _close(self) -> bool:
        """End the playbooks, and return whether anything of the job was ever started.

        Release the resources of an attempt that has not started.
        """
        if self._stop is not None:
            self._stop.close()
        was_running = self._running
        self._playbook.close(self._log)
        self._running = False
        if was_running and not self._started:
            self._give_back()
        if self._started or self._is_down:
            return True
        self.forget()
        return False

    def _give_back(self) -> None:
        """Release what an attempt that has not started holds on the hosts, and undo its plan."""
        manifest = job_records.read_manifest(self.run_dir)
        ended = self._playbook.outcome.ended
        before = max(self._attempt_before, ended["attempts"] if ended else 0)
        # The manifest decides: a playbook that is killed may have planned without reporting it.
        if manifest is None or (attempt := int(manifest["attempt"])) <= before:
            return  # nothing was planned, or it is already undone
        outcome = playbooks.run_playbook("unstage.yml", self.inventory, self.variables)
        self._stop_messages = outcome.messages
        if attempt == 1:
            self.forget()
        elif not outcome.unreachable:
            withdrawal.withdraw(self.run_dir, attempt)

    def _nothing_started(self) -> str:
        """Return a message that nothing was started, with the errors of releasing resources."""
        return "\n".join(["nothing was started", *self._stop_messages])

    def _end(self, result: Result) -> Result:
        """Set the result of the job, and return it."""
        self.result = result
        return result

    def forget(self) -> None:
        """Remove the local files of a job that never started, so that its id is free again."""
        if self._new:
            (self.run_dir / VARIABLES_FILE).unlink(missing_ok=True)
            (self.run_dir / inventories.CONNECTION_FILE).unlink(missing_ok=True)
            (self.run_dir / WATCH_LOG).unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.forget()
            withdrawal.forget(self.run_dir)

    @property
    def _log(self) -> Path | None:
        return self.run_dir / "ansible.log" if self._started and self.run_dir.is_dir() else None

    def _command(self, name: str) -> str:
        """Return a command that acts on this job, to be shown in messages."""
        return suggestions.command(
            name, suggesting.call_of(self.inventory, self.variables), job=self.name
        )

    def _result(self, state: str, message: str) -> Result:
        return Result(self.name, state, message, {}, [], self.run_dir)


def run(
    script: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    module: str = "",
    include: Sequence[str | Path] = (),
    requirements: str | Path = "",
    framework: str = "",
    inventory: Inventory = None,
    job: str = "",
    variables: Variables | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Start a job, see ``Job.start``, and ``follow`` it to its end."""
    started = Job.start(
        script,
        arguments,
        module=module,
        include=include,
        requirements=requirements,
        framework=framework,
        inventory=inventory,
        job=job,
        variables=variables,
    )
    return follow(started, on_event)


def follow(job: Job, on_event: Callable[[Event], None] | None = None) -> Result:
    """Follow ``job`` to its end, pass each event to ``on_event``, and return its result.

    After a KeyboardInterrupt or another exception, the job keeps running, but no Ansible process
    on this machine does.
    """
    try:
        while job.result is None:
            for event in job.events():
                if on_event is not None:
                    on_event(event)
    except BaseException:
        job.leave()
        raise
    finally:
        job.close()
    return job.result


def _of_job(
    job: str, inventory: Inventory, variables: Variables | None
) -> tuple[AnsibleOptions, dict[str, Any]]:
    """Return the options that reach the hosts of a job, and the variables to use.

    Without ``inventory``, the options are those that the job was started with, and the variables
    of its connection are added to ``variables``.
    """
    chosen = with_runs_dir(inventory, variables)
    if not job or inventory:
        return options_of(inventory), chosen
    run_dir = run_dir_of(job, chosen)
    connection = inventories.kept(run_dir) or {"variables": {}}
    return inventories.options_for(run_dir, inventory), {**connection["variables"], **chosen}


def status(
    job: str = "", inventory: Inventory = None, variables: Variables | None = None
) -> tuple[playbooks.PlaybookOutcome, playbooks.ByHost]:
    """Return the outcome of the status playbook, and each inventory host's report about its rank.

    If a host has several ranks, the others are in the field ``more`` of its report. Without
    ``job``, each host reports its newest job.
    """
    inventory, given = _of_job(job, inventory, variables)
    chosen = with_kept(job, given)
    outcome = playbooks.run_playbook("status.yml", inventory, chosen)
    return outcome, outcome.answers("gang_states")


def stop(
    job: str, inventory: Inventory = None, variables: Variables | None = None
) -> playbooks.PlaybookOutcome:
    """End every process of a job on every host, and return the outcome of the stop playbook."""
    inventory, given = _of_job(job, inventory, variables)
    chosen = with_kept(job, given)
    return playbooks.run_playbook("stop.yml", inventory, chosen)
