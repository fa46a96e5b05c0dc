"""The drill: a fault-injection test on the user's own hosts, with a short job for each fault.

The jobs train with TensorFlow. The drill refuses to run alongside jobs of any user. A fault that
affects a whole host reverts itself. The drill's jobs are always stopped at the end.
"""

from __future__ import annotations

import re
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from train.cli import playbooks
from train.cli.ansible_options import Inventory, Variables
from train.cli.job import Event, Job, follow, stop
from train.cli.output import Exit, complain, exit_code, print_table
from train.gang import cause_names, reports
from train.gang.errors import UserError
from train.gang.job_records import MergedJob, read_manifest
from train.gang.listing import LISTED_BY
from train.gang.plan.script_files import WORKER
from train.host import end_causes, faults, frameworks

#: Seconds for which packets to a port are dropped or sshd is stopped.
SECONDS = 15.0
#: The first step at which a fault may be injected, and the time limit of a job in seconds.
_FIRST_STEP = 25
_LIMIT = 300.0
#: Seconds between two checks whether the fault was detected.
_INTERVAL = 0.05
#: Arguments for a training that is long enough and can resume from frequent checkpoints.
ARGUMENTS = (
    *("--data", "synthetic", "--model", "mnist-cnn", "--epochs", "4", "--evaluate-every", "0"),
    *("--checkpoint-every", "10", "--learning-rate", "0.01"),
)
_RESUMED = re.compile(r"resumed at step ([0-9]+)")
#: The causes that may be reported for each fault; empty if the job must not be affected.
EXPECTED: Mapping[str, set[str]] = {
    faults.KILL: {end_causes.SIGNAL},
    faults.FREEZE: {cause_names.FROZEN},
    faults.PORT: {cause_names.NETWORK, cause_names.UNREACHABLE},
    faults.SSH: set(),
}


@dataclass(frozen=True)
class Row:
    """The outcome of one fault."""

    fault: str
    victim: str = ""  # the rank and its inventory host
    detected: float | None = None  # seconds from fault to detection
    named: bool | None = None  # the right rank and cause were reported; None if none was expected
    left: int | None = None  # processes of the job on the hosts after its end
    resumed: int | None = None  # the first step of the next attempt
    error: str = ""  # the error, or why the fault was left out
    skipped: bool = False  # the fault was left out

    @property
    def well(self) -> bool:
        """Whether the job behaved as expected, or the fault was left out."""
        return self.skipped or not (self.error or self.left)

    @property
    def cells(self) -> list[str]:
        """The cells of the row in the table, as text."""
        if self.skipped:
            return [self.fault, self.victim, "skipped", "", "", "", self.error]
        return [
            *(self.fault, self.victim),
            "-" if self.detected is None else f"{self.detected:.1f} s",
            {True: "yes", False: "NO", None: "-"}[self.named],
            "" if self.left is None else f"{self.left} processes" if self.left else "nothing",
            "-" if self.resumed is None else f"step {self.resumed}",
            self.error or "ok",
        ]


_HEADER = ("fault", "victim", "detected in", "correctly named", "left behind", "resumed at", "")


def run_drill(args: Namespace, variables: Variables) -> int:
    """Run the drill and print its table; raise UserError if another job runs."""
    outcome = playbooks.run_playbook("list.yml", args.inventory, variables)
    if outcome.unreachable:
        code = exit_code(outcome, "drill")
        complain("drill", "the drill needs all hosts of the inventory")
        return code
    _require_idle_hosts(outcome)
    rows = []
    for fault in args.fault or faults.FAULTS:
        print(f"{fault}: starting a job", flush=True)
        rows.append(_one(fault, args.inventory, variables, args.fault_become))
        print(f"{fault}: {', '.join(cell for cell in rows[-1].cells[1:] if cell)}", flush=True)
    width = None if sys.stdout.isatty() else 200
    print_table(_HEADER, [row.cells for row in rows], width)
    return Exit.COMPLETED if all(row.well for row in rows) else Exit.FAILED


def _require_idle_hosts(outcome: playbooks.PlaybookOutcome) -> None:
    """Raise UserError if a job of any user runs on the hosts.

    ``outcome`` is the outcome of list.yml.
    """
    if outcome.code:
        raise UserError("\n".join(outcome.messages))
    listed: list[MergedJob] = outcome.result("job_list")["jobs"]
    alive = [f"{job['job']} on {', '.join(job['hosts'])}" for job in listed if job["alive"]]
    if alive:
        raise UserError(
            f"the drill cannot run alongside other jobs: wait until {' and '.join(alive)} "
            f"{'has' if len(alive) == 1 else 'have'} ended"
        )
    # Leases also show jobs of other users, or with another root.
    others = {}
    for host, result in outcome.answers("gang_jobs").items():
        if LISTED_BY in result:
            continue
        try:
            leases = reports.items(reports.text())(result.get("leases"))
        except reports.ReportError as error:
            raise UserError(
                f"the drill was not started: the report of {host} about leases {error}"
            ) from None
        others.update(dict.fromkeys(leases, host))
    if others:
        named = "; ".join(f"{host} is {lease}" for lease, host in others.items())
        raise UserError(
            f"the drill cannot run alongside other jobs: {named}; wait until that job has ended"
        )


def _one(fault: str, inventory: Inventory, variables: Variables, become: bool) -> Row:
    name = f"drill-{fault}-{time.strftime('%H%M%S')}"
    policy = {"train_job_max_restarts": 2, "train_job_restart_delay": 0, **variables}
    policy["train_job_module"] = ""
    tensorflow = frameworks.TENSORFLOW
    job = Job.start(
        WORKER, ARGUMENTS, framework=tensorflow, inventory=inventory, job=name, variables=policy
    )
    try:
        return _follow(fault, job, become)
    finally:
        if job.result is None:
            job.leave()
        stop(name, inventory, variables)


def _follow(fault: str, job: Job, become: bool) -> Row:
    """Inject a fault into a job once its ranks train; return the fault's row when the job ends."""
    deadline = time.monotonic() + _LIMIT
    injection: playbooks.Playbook | None = None
    at: float | None = None
    restarts: list[tuple[float, Event]] = []
    row = Row(fault)
    while job.result is None and time.monotonic() < deadline:
        for event in job.events(_INTERVAL):
            if event.kind == "restart":
                restarts.append((time.monotonic(), event))
            step = event.data["progress"].get("step", 0) if event.kind == "rank" else 0
            if injection is None and step >= _FIRST_STEP:
                victim, given = _choose_victim(job)
                row = replace(row, victim=victim)
                given |= {"train_job_fault": fault, "train_job_fault_become": become}
                injection = playbooks.Playbook("fault.yml", job.inventory, given)
        if injection and at is None and injection.outcome.result("rank_fault"):
            at = time.monotonic()
            if injection.outcome.result("rank_fault")["skipped_because"]:
                break
    if injection is None:
        why = job.result.message.partition("\n")[0] if job.result else "it took too long"
        return replace(row, error=f"the job ended before the fault could be injected: {why}")
    while not injection.wait(1.0):
        pass
    outcome = injection.close()
    injected = outcome.result("rank_fault")
    if not injected:
        return replace(row, error="; ".join(outcome.messages) or "the fault could not be injected")
    if injected["skipped_because"]:
        return replace(row, error=str(injected["skipped_because"]), skipped=True)
    if job.result is None:
        return replace(row, error=f"the job did not end within {_LIMIT:g} s")
    at = (at or time.monotonic()) + injected.get("delay", 0.0)
    return _judge(row, [(when - at, event) for when, event in restarts], job)


def _choose_victim(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the last training rank, preferably not the chief, and variables for fault.yml."""
    manifest = read_manifest(job.run_dir)
    if manifest is None:
        raise FileNotFoundError(f"no manifest in {job.run_dir}")
    rank = [rank for rank in manifest["ranks"] if not rank["non_training"]][-1]
    host = rank["host"]
    given = {
        **job.variables,
        "train_job_root": manifest["hosts"][host]["root"],
        "train_job_fault_host": host,
        "train_job_fault_seconds": SECONDS,
    }
    return f"{rank['task']} on {host}", given


def _judge(row: Row, restarts: Sequence[tuple[float, Event]], job: Job) -> Row:
    """Return a fault's row with the results.

    ``restarts`` are the restarts of the fault's job, each with the seconds since the fault.
    """
    result = follow(job)
    stopped = stop(job.name, job.inventory, job.variables).answers("gang_stop")
    reported = [report for found in stopped.values() for report in reports.stop_reports(found)]
    row = replace(row, left=sum(rank["ended"] + len(rank["remaining"]) for rank in reported))
    wanted = EXPECTED[row.fault]
    error = "" if result.state == "completed" else f"the job {result.state}: {result.message}"
    if restarts and not wanted:
        error = f"the job was restarted: {restarts[0][1].data['message']}"
    elif restarts:
        seconds, event = restarts[0]
        named = event.task == row.victim.split()[0] and event.data["cause"] in wanted
        if not named and not error:
            error = f"named {event.task or 'no rank'}, cause {event.data['cause']}"
        log = job.run_dir / "logs" / f"{result.ranks[0]['task'] if result.ranks else ''}.log"
        resumed = _RESUMED.search(log.read_text("utf-8", "replace")) if log.is_file() else None
        if resumed is None and not error:
            error = "the next attempt did not resume"
        step = int(resumed[1]) if resumed else None
        row = replace(row, detected=max(0.0, seconds), named=named, resumed=step)
    elif wanted and row.fault != faults.PORT:  # connections may survive the packet loss
        error = error or "the fault was not detected"
    return replace(row, error=error.split("\n")[0][:160])
