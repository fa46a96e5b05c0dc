"""Training jobs from Python: start one, follow it, look at it, stop it.

    from train.control.job import run

    result = run("main.py", ["--epochs", "5"], inventory="inventory/lab", on_event=print)
    print(result.state, result.metrics)

The same playbooks are run as from the command line; what this module adds is the job's events as
they come, in one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.control import playbooks, watch
from train.control.plan import REPOSITORY, PlanError, choose_job
from train.control.staging import WORKER, find_includes, find_script
from train.host import records

RUNS_DIR = REPOSITORY / "runs"
#: Tasks after which ranks may run on the hosts.
_STARTED = "Start the rank's supervisor"


@dataclass(frozen=True)
class Event:
    """Something new about a job.

    Attributes:
        kind: ``task`` (Ansible is at another task) or ``rank`` (news of a rank).
        job: the job's id.
        task: the rank, such as ``worker-0``; for ``kind == "task"`` the name of Ansible's task.
        data: for a rank the line of ``events.jsonl``, see docs/formats.md; else empty.
    """

    kind: str
    job: str
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        state: ``completed``, ``failed``, ``stopped``; ``refused`` where nothing was started because
            of wrong input or a host that is not ready; ``unreachable`` where nothing was started
            because a host does not answer; ``left`` where the job runs on unwatched.
        message: for people.
        metrics: the chief's last metrics, such as ``test_accuracy``.
        ranks: see ``result.json`` in docs/formats.md.
        run_dir: the job's folder on the control node.
    """

    job: str
    state: str
    message: str
    metrics: Mapping[str, float]
    ranks: Sequence[Mapping[str, Any]]
    run_dir: Path


class Job:
    """A job that is followed.

    Args:
        name: its id.
        playbook: ``train.yml`` or ``attach.yml``.
        inventory: file or folder; None for inventory/local.
        variables: the role's variables.

    Raises:
        FileNotFoundError: there is no such inventory.
    """

    def __init__(
        self, name: str, playbook: str, inventory: str | Path | None, variables: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.inventory = Path(inventory) if inventory else playbooks.DEFAULT_INVENTORY
        self.variables = {**variables, "train_job_id": name}
        runs_dir = Path(variables.get("train_job_runs_dir", RUNS_DIR)).expanduser().resolve()
        self.variables["train_job_runs_dir"] = str(runs_dir)
        self.run_dir = runs_dir / name
        self.attaching = playbook == "attach.yml"
        self._offset = 0
        if self.attaching and self._events_path.exists():
            self._offset = self._events_path.stat().st_size
        self._result_before = self._result_time()
        self._last_task = ""
        self._started = self.attaching
        self._playbook = playbooks.Playbook(playbook, self.inventory, self.variables)

    @property
    def _events_path(self) -> Path:
        return self.run_dir / watch.EVENTS_FILE

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield what is new, after waiting ``timeout`` seconds at most; nothing is a valid answer.

        ``ended`` tells whether more can come.
        """
        self._playbook.wait(timeout)
        task = self._playbook.outcome.task
        if task != self._last_task:
            self._last_task = task
            self._started = self._started or task.endswith(_STARTED)
            yield Event("task", self.name, task.rpartition("| ")[2])
        for line in self._new_lines():
            try:
                data = json.loads(line)
            except ValueError:
                continue
            yield Event("rank", self.name, str(data["task"]), data)

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
            return (self.run_dir / "result.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None

    @property
    def ended(self) -> bool:
        """Whether the playbook has ended."""
        return not self._playbook.running

    def leave(self) -> Result:
        """Stop following; the job goes on, or what was not started stays so."""
        self._playbook.close(self._log)
        return self._result("left", f"job {self.name} runs on: attach to it or stop it")

    def stop(self) -> Result:
        """Stop following and end the job on every host."""
        self._playbook.close(self._log)
        if not self._started:
            return self._result("stopped", "nothing had been started")
        outcome = stop(self.name, self.inventory, self.variables)
        if outcome.code:
            return self._result("failed", "; ".join(failures_of(outcome)))
        return self._result("stopped", "the job was stopped on every host")

    @property
    def _log(self) -> Path | None:
        return self.run_dir / "ansible.log" if self._started and self.run_dir.is_dir() else None

    def _result(self, state: str, message: str) -> Result:
        return Result(self.name, state, message, {}, [], self.run_dir)

    def close(self) -> Result:
        """Return how the job ended, once ``ended`` is true; until then, wait."""
        while not self._playbook.wait(1.0):
            pass
        outcome = self._playbook.close(self._log)
        written = records.read_json(str(self.run_dir / "result.json"))
        if written is not None and self._result_time() != self._result_before:
            return Result(
                self.name,
                written["state"],
                written["message"],
                written["metrics"],
                written["ranks"],
                self.run_dir,
            )
        if not self._started and self.run_dir.is_dir() and not any(self.run_dir.iterdir()):
            self.run_dir.rmdir()
        message = "\n".join(failures_of(outcome)) or "ansible-playbook ended without a message"
        if outcome.unreachable:
            return self._result("unreachable", message)
        if not self._started or self.attaching:
            return self._result("refused", message)
        # The playbook broke off between the start and the watch: nothing may stay behind.
        stop(self.name, self.inventory, self.variables)
        return self._result("failed", message)


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
    inventory: str | Path | None = None,
    job: str = "",
    variables: Mapping[str, Any] | None = None,
) -> Job:
    """Start a job and return it, to be followed with ``events`` and ended with ``close``.

    Args:
        script: a file or directory of this machine; None for the project's own train/worker.py.
        arguments: the script's.
        include: files and folders of this machine that are staged beside the script.
        inventory: file or folder; None for inventory/local.
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
    runs_dir = Path(chosen.get("train_job_runs_dir", RUNS_DIR)).expanduser()
    name, _ = choose_job(job, folder / entry, runs_dir)
    return Job(name, "train.yml", inventory, chosen)


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
    inventory: str | Path | None = None,
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
    inventory: str | Path | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Job:
    """Return a job that runs already, to be followed; any control node with the inventory can.

    Raises:
        FileNotFoundError: there is no such inventory.
    """
    return Job(job, "attach.yml", inventory, dict(variables or {}))


def status(
    job: str = "",
    inventory: str | Path | None = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[playbooks.Outcome, dict[str, Any]]:
    """Return the outcome of the status playbook and what each inventory host said of its rank.

    Args:
        job: its id; empty for the newest job of each host.
    """
    outcome = playbooks.run_playbook(
        "status.yml",
        Path(inventory) if inventory else playbooks.DEFAULT_INVENTORY,
        {**(variables or {}), "train_job_id": job},
    )
    return outcome, outcome.results.get("Status | Look at the rank", {})


def stop(
    job: str,
    inventory: str | Path | None = None,
    variables: Mapping[str, Any] | None = None,
) -> playbooks.Outcome:
    """End every process of a job on every host, and return the outcome of the stop playbook."""
    return playbooks.run_playbook(
        "stop.yml",
        Path(inventory) if inventory else playbooks.DEFAULT_INVENTORY,
        {**(variables or {}), "train_job_id": job},
    )


__all__ = [
    "Event",
    "Job",
    "PlanError",
    "Result",
    "attach",
    "follow",
    "run",
    "start",
    "status",
    "stop",
]
