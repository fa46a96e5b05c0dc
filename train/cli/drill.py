"""The drill: a fault-injection test on the user's own hosts, with a short job for each fault.

    python -m train drill -i inventory/lab

It refuses to run alongside other jobs, of any user. A fault of a host undoes itself; the drill's
jobs are stopped at the end, whatever happens.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from train.cli import job as jobs
from train.cli import playbooks
from train.cli.ansible_options import Inventory
from train.cli.events import Event, JobRow, Variables
from train.gang import reports
from train.gang.plan.ranks import MANIFEST_FILE, PlanError
from train.gang.watch import causes
from train.host import ends, faults

#: Seconds for which a port is dropped or sshd stopped.
SECONDS = 15.0
#: The step from which on a fault may come, and the seconds that a drill's job may take.
_FIRST_STEP = 25
_LIMIT = 300.0
#: Trains long enough for a fault, and writes checkpoints often enough to be resumed.
ARGUMENTS = (
    *("--data", "synthetic", "--model", "mnist-cnn", "--epochs", "4", "--evaluate-every", "0"),
    *("--checkpoint-every", "10", "--learning-rate", "0.01"),
)
_RESUMED = re.compile(r"resumed at step (\d+)")
#: The causes that may be reported of each fault; none where the job must not be affected.
EXPECTED: Mapping[str, set[str]] = {
    faults.KILL: {ends.SIGNAL},
    faults.FREEZE: {causes.FROZEN},
    faults.PORT: {causes.NETWORK, causes.UNREACHABLE},
    faults.SSH: set(),
}


@dataclass(frozen=True)
class Row:
    """The outcome of one fault.

    Attributes:
        victim: the rank and its inventory host.
        detected: seconds from the fault to its detection; None where there was none.
        named: whether the right rank and cause were reported; None where none was to be.
        left: how many processes of the job were left on the hosts when it was over.
        resumed: the step that the next attempt began with; None where there was none.
        trouble: what went wrong, or why it was left out; empty where all is well.
        skipped: whether it was left out.
    """

    fault: str
    victim: str = ""
    detected: float | None = None
    named: bool | None = None
    left: int | None = None
    resumed: int | None = None
    trouble: str = ""
    skipped: bool = False

    @property
    def well(self) -> bool:
        """Whether all went as it should, or the fault was left out."""
        return self.skipped or not (self.trouble or self.left)

    @property
    def cells(self) -> list[str]:
        """The row as texts."""
        if self.skipped:
            return [self.fault, self.victim, "left out", "", "", "", self.trouble]
        return [
            self.fault,
            self.victim,
            "-" if self.detected is None else f"{self.detected:.1f} s",
            {True: "yes", False: "NO", None: "-"}[self.named],
            "" if self.left is None else f"{self.left} processes" if self.left else "nothing",
            "-" if self.resumed is None else f"step {self.resumed}",
            self.trouble or "well",
        ]


HEADER = ("fault", "victim", "detected in", "named rightly", "left behind", "resumed at", "")


def drill(
    chosen: Sequence[str],
    inventory: Inventory,
    variables: Variables,
    become: bool,
    show: Callable[[str], None],
) -> list[Row]:
    """Run the drill and return its rows.

    Args:
        chosen: the faults.
        become: whether what needs root becomes root by Ansible's means.
        show: shows a line to a person.

    Raises:
        PlanError: another job runs on the hosts, or one of them is unreachable.
    """
    _require_idle_hosts(playbooks.run_playbook("list.yml", inventory, variables))
    rows = []
    for fault in chosen:
        show(f"{fault}: a job is started")
        rows.append(_one(fault, inventory, variables, become))
        show(f"{fault}: {', '.join(cell for cell in rows[-1].cells[1:] if cell)}")
    return rows


def _require_idle_hosts(outcome: playbooks.Outcome) -> None:
    """Check that no job runs, by what the list playbook found.

    Raises:
        PlanError: one does, of any user, or that is not known.
    """
    if outcome.unreachable:
        raise PlanError(f"{', '.join(outcome.unreachable)} is unreachable: no drill without it")
    if outcome.code:
        raise PlanError("\n".join(outcome.messages) or "the hosts' jobs are not known")
    listed: list[JobRow] = outcome.result("jobs")["jobs"]
    alive = [f"{job['job']} on {', '.join(job['hosts'])}" for job in listed if job["alive"]]
    if alive:
        raise PlanError(f"no drill alongside a real job: {'; '.join(alive)} runs")
    # Jobs of other users, or with another root. Inventory hosts of one machine report the same.
    others = {}
    for host, result in outcome.results["list_jobs"].items():
        try:
            leases = reports.items(reports.text())(result.get("leases"))
        except reports.ReportError as error:
            raise PlanError(f"{host}: what it reports of its leases {error}: no drill") from None
        others.update(dict.fromkeys(leases, host))
    if others:
        named = "; ".join(f"{host} is {lease}" for lease, host in others.items())
        raise PlanError(f"no drill alongside another job: {named}; wait until it has ended")


def _one(fault: str, inventory: Inventory, variables: Variables, become: bool) -> Row:
    name = f"drill-{fault}-{time.strftime('%H%M%S')}"
    policy = {"train_job_max_restarts": 2, "train_job_restart_delay": 0, **variables}
    job = jobs.start(None, ARGUMENTS, inventory=inventory, job=name, variables=policy)
    try:
        return _follow(fault, job, become)
    finally:
        if job.result is None:
            job.leave()
        jobs.stop(name, inventory, variables)


def _follow(fault: str, job: jobs.Job, become: bool) -> Row:
    deadline = time.monotonic() + _LIMIT
    injection: _Injection | None = None
    restarts: list[tuple[float, Event]] = []
    while job.result is None and time.monotonic() < deadline:
        for event in job.events():
            if event.kind == "restart":
                restarts.append((time.monotonic(), event))
            step = event.data["progress"].get("step", 0) if event.kind == "rank" else 0
            if injection is None and step >= _FIRST_STEP:
                injection = _Injection(fault, job, become)
                injection.start()
        if injection and injection.skipped_because:
            break
    if injection is None:
        return Row(fault, trouble="the job was over before the fault could be injected")
    injection.join()
    if injection.trouble:
        return Row(fault, injection.victim, trouble=injection.trouble)
    if injection.skipped_because:
        return Row(fault, injection.victim, trouble=injection.skipped_because, skipped=True)
    if job.result is None:
        return Row(fault, injection.victim, trouble=f"the job was not over within {_LIMIT:g} s")
    return _row_of(injection, restarts, job)


class _Injection(threading.Thread):
    """Injects a fault into the last rank that trains, best not the chief."""

    def __init__(self, fault: str, job: jobs.Job, become: bool) -> None:
        super().__init__()
        self.fault, self._inventory = fault, job.inventory
        manifest = json.loads((job.run_dir / MANIFEST_FILE).read_text(encoding="utf-8"))
        rank = [rank for rank in manifest["ranks"] if not rank["service"]][-1]
        self.task, self._host = rank["task"], rank["host"]
        self.victim = f"{self.task} on {self._host}"
        self.at = 0.0  # monotonic clock
        self.skipped_because = self.trouble = ""
        self._variables = {
            **job.variables,
            "train_job_root": manifest["hosts"][self._host]["root"],
            "train_job_fault": fault,
            "train_job_fault_host": self._host,
            "train_job_fault_become": become,
            "train_job_fault_seconds": SECONDS,
        }

    def run(self) -> None:
        """Inject the fault and note what came of it."""
        playbook = playbooks.Playbook("fault.yml", self._inventory, self._variables)
        while not (playbook.wait(0.05) or "inject_fault" in playbook.outcome.results):
            pass
        self.at = time.monotonic()
        while not playbook.wait(1.0):
            pass
        outcome = playbook.close()
        result = outcome.results.get("inject_fault", {}).get(self._host)
        if result is None:
            self.trouble = "; ".join(outcome.messages) or "it could not be done"
        else:
            self.at += result.get("delay", 0.0)
            self.skipped_because = str(result["skipped_because"] or "")


def _row_of(injection: _Injection, restarts: Sequence[tuple[float, Event]], job: jobs.Job) -> Row:
    """Return the row of a fault that was injected, once its job has ended."""
    result = jobs.follow(job)
    stopped = jobs.stop(job.name, job.inventory, job.variables).results.get("stop", {})
    reported = [reports.receipt(found) for found in stopped.values()]
    left = sum(rank["ended"] + len(rank["remaining"]) for rank in reported)
    row = Row(injection.fault, injection.victim, left=left)
    wanted = EXPECTED[injection.fault]
    trouble = "" if result.state == "completed" else f"the job {result.state}: {result.message}"
    if restarts and not wanted:
        trouble = f"the job was started again: {restarts[0][1].data['message']}"
    elif restarts:
        at, event = restarts[0]
        named = event.task == injection.task and event.data["cause"] in wanted
        if not named and not trouble:
            trouble = f"{event.task or 'nobody'}: {event.data['cause']}"
        log = job.run_dir / "logs" / f"{result.ranks[0]['task'] if result.ranks else ''}.log"
        resumed = _RESUMED.search(log.read_text("utf-8", "replace")) if log.is_file() else None
        if resumed is None and not trouble:
            trouble = "the next attempt did not resume"
        detected, step = max(0.0, at - injection.at), int(resumed[1]) if resumed else None
        row = replace(row, detected=detected, named=named, resumed=step)
    elif wanted and injection.fault != faults.PORT:  # connections may outlast the loss of packets
        trouble = trouble or "nobody noticed"
    return replace(row, trouble=trouble.split("\n")[0][:160])
