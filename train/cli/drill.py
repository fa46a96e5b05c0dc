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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.cli import job as jobs
from train.cli import playbooks
from train.cli.ansible_options import Inventory
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
        fault: one of host.faults.FAULTS.
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
    variables: Mapping[str, Any],
    become: bool,
    say: Callable[[str], None],
) -> list[Row]:
    """Run the drill and return its rows.

    Args:
        chosen: the faults.
        become: whether what needs root becomes root by Ansible's means.
        say: shows a line to a person.

    Raises:
        PlanError: another job runs on the hosts, or one of them is unreachable.
        FileNotFoundError: there is no such inventory.
    """
    outcome = playbooks.run_playbook("list.yml", inventory, variables)
    if outcome.unreachable:
        raise PlanError(f"{', '.join(outcome.unreachable)} is unreachable: no drill without it")
    if outcome.code:
        raise PlanError("\n".join(jobs.failures_of(outcome)) or "the hosts' jobs are not known")
    merged = playbooks.first_result(outcome, "jobs")
    alive = [f"{job['job']} on {', '.join(job['hosts'])}" for job in merged["jobs"] if job["alive"]]
    if alive:
        raise PlanError(f"no drill beside a real job: {'; '.join(alive)} runs")
    # Jobs of other users, or with another root. Inventory hosts of one machine report the same.
    others = {}
    for host, listed in outcome.results["list_jobs"].items():
        try:
            found = reports.items(reports.text())(listed.get("leases"))
        except reports.ReportError as error:
            raise PlanError(f"{host}: what it reports of its leases {error}: no drill") from None
        others.update(dict.fromkeys(found, host))
    if others:
        named = "; ".join(f"{host} is {lease}" for lease, host in others.items())
        raise PlanError(f"no drill beside another job: {named}; wait until it has ended")
    rows = []
    for fault in chosen:
        say(f"{fault}: a job is started")
        rows.append(_one(fault, inventory, dict(variables), become))
        say(f"{fault}: {', '.join(cell for cell in rows[-1].cells[1:] if cell)}")
    return rows


def _one(fault: str, inventory: Inventory, variables: dict[str, Any], become: bool) -> Row:
    name = f"drill-{fault}-{time.strftime('%H%M%S')}"
    policy = {"train_job_max_restarts": 2, "train_job_restart_delay": 0, **variables}
    job = jobs.start(None, ARGUMENTS, inventory=inventory, job=name, variables=policy)
    try:
        return _follow(fault, job, become)
    finally:
        if not job.ended:
            job.leave()
        jobs.stop(name, inventory, variables)


def _follow(fault: str, job: jobs.Job, become: bool) -> Row:
    deadline = time.monotonic() + _LIMIT
    injection: threading.Thread | None = None
    done: dict[str, Any] = {}
    restarts: list[tuple[float, Mapping[str, Any], str]] = []
    victim = ""
    while not job.ended and time.monotonic() < deadline:
        for event in job.events():
            if event.kind == "restart":
                restarts.append((time.monotonic(), event.data, event.task))
            step = event.data.get("progress", {}).get("step") if event.kind == "rank" else None
            if injection is None and isinstance(step, int) and step >= _FIRST_STEP:
                host, task, root = _victim(job.run_dir)
                victim = f"{task} on {host}"
                given = {**job.variables, "train_job_fault": fault, "train_job_root": root}
                given.update(train_job_fault_host=host, train_job_fault_become=become)
                given["train_job_fault_seconds"] = SECONDS
                injection = threading.Thread(target=_inject, args=(job.inventory, given, done))
                injection.start()
        if done.get("skipped_because"):
            break
    if injection is None:
        return Row(fault, victim, trouble="the job was over before the fault could be injected")
    injection.join()
    if "trouble" in done:
        return Row(fault, victim, trouble=str(done["trouble"]))
    if done["skipped_because"]:
        return Row(fault, victim, trouble=str(done["skipped_because"]), skipped=True)
    if not job.ended:
        return Row(fault, victim, trouble=f"the job was not over within {_LIMIT:g} s")
    result = job.close()
    return _judge(fault, victim, done["at"] + done["delay"], restarts, result, job)


def _victim(run_dir: Path) -> tuple[str, str, str]:
    """Return host, task and root of the fault's rank: the last that trains, best not the chief."""
    manifest = json.loads((run_dir / MANIFEST_FILE).read_text(encoding="utf-8"))
    training = [rank for rank in manifest["ranks"] if not rank["service"]]
    host = training[-1]["host"]
    return host, training[-1]["task"], manifest["hosts"][host]["root"]


def _inject(inventory: Inventory, variables: Mapping[str, Any], done: dict[str, Any]) -> None:
    """Inject the fault; note in ``done`` the outcome and when it was (monotonic clock)."""
    playbook = playbooks.Playbook("fault.yml", inventory, variables)
    while not playbook.wait(0.05):
        if "inject_fault" in playbook.outcome.results and "at" not in done:
            done["at"] = time.monotonic()
    outcome = playbook.close()
    done.setdefault("at", time.monotonic())
    result = outcome.results.get("inject_fault", {}).get(variables["train_job_fault_host"])
    if result is None:
        done["trouble"] = "; ".join(jobs.failures_of(outcome)) or "it could not be done"
    else:
        done.update(delay=result.get("delay", 0.0), skipped_because=result["skipped_because"])


def _judge(
    fault: str,
    victim: str,
    injected_at: float,
    restarts: Sequence[tuple[float, Mapping[str, Any], str]],
    result: jobs.Result,
    job: jobs.Job,
) -> Row:
    stopped = jobs.stop(job.name, job.inventory, job.variables)
    results = stopped.results.get("stop", {})
    found = [reports.receipt(result) for result in results.values()]
    left = sum(receipt["ended"] + len(receipt["remaining"]) for receipt in found)
    wanted = EXPECTED[fault]
    trouble = "" if result.state == "completed" else f"the job {result.state}: {result.message}"
    if not wanted and restarts:
        trouble = f"the job was started again: {restarts[0][1]['message']}"
    # Connections may outlast the loss of packets.
    if not wanted or (fault == faults.PORT and not restarts):
        return Row(fault, victim, left=left, trouble=_first(trouble))
    if not restarts:
        return Row(fault, victim, left=left, trouble=_first(trouble or "nobody noticed"))
    at, data, first = restarts[0]
    named = first == victim.split()[0] and data["cause"] in wanted
    if not named and not trouble:
        trouble = f"{first or 'nobody'}: {data['cause']}"
    log = job.run_dir / "logs" / f"{result.ranks[0]['task'] if result.ranks else ''}.log"
    resumed = _RESUMED.search(log.read_text("utf-8", "replace")) if log.is_file() else None
    if resumed is None and not trouble:
        trouble = "the next attempt did not resume"
    return Row(
        fault,
        victim,
        detected=max(0.0, at - injected_at),
        named=named,
        left=left,
        resumed=int(resumed[1]) if resumed else None,
        trouble=_first(trouble),
    )


def _first(text: str) -> str:
    return text.split("\n")[0][:160]


def is_well(row: Row) -> bool:
    """Return whether all went as it should, or the fault was left out."""
    return row.skipped or not (row.trouble or row.left)
