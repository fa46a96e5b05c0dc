"""What can bring a gang down, what to do about it, and whether another attempt follows.

The causes in ``state.json`` are those of host/ends.py; those that only the control node can see
are here. Whether another attempt follows is decided once, from the job's folder on the control
node, where the result is written; what supervises obeys.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from train.gang.records import RESULT_FILE, Result, read_manifest, read_result
from train.host import ends, records

UNREACHABLE = "unreachable"
NOT_STARTED = "not_started"
FROZEN = "frozen"
NETWORK = "network"
ADDRESS = "address"
BLOCKED = "blocked"
PROXY = "proxy"
WEIGHTS = "weights"


class Cause(NamedTuple):
    """Whether the job is worth another try as it is, and what helps, in words."""

    again: bool
    remedy: str


_DOCTOR = "`python -m train doctor` does"

CAUSES = {
    ends.EXIT: Cause(False, "fix the script: it would fail the same way again"),
    ends.SIGNAL: Cause(True, "find out who sent the signal"),
    ends.MEMORY: Cause(True, "lower the batch size, or give the host or the GPU more memory"),
    ends.DISK: Cause(False, "make space on that disk, then `python -m train restart`"),
    ends.DOWNLOAD: Cause(False, "bring the data with playbooks/setup.yml (training_data)"),
    ends.START_TIMEOUT: Cause(
        False,
        "see in its log what it does before it makes its strategy, or raise "
        "train_job_start_timeout",
    ),
    ends.HUNG: Cause(True, "its stacks show where it waited; see train_job_hang_factor"),
    ends.MAX_RUNTIME: Cause(False, "raise train_job_max_runtime, then `python -m train restart`"),
    ends.SUPERVISOR: Cause(True, "find out who killed the supervisor"),
    ends.INTERNAL: Cause(True, "report this fault of the launcher, with the rank's supervisor.log"),
    ends.REBOOT: Cause(True, "find out why the host was restarted"),
    ends.UNSTARTABLE: Cause(False, "run playbooks/setup.yml, or set train_job_python"),
    ends.FENCED: Cause(False, "let the other job end, or choose another train_job_port"),
    UNREACHABLE: Cause(True, "check the host and its network"),
    NOT_STARTED: Cause(True, "check what its host reports"),
    FROZEN: Cause(True, "check what stopped the process or the host"),
    NETWORK: Cause(True, f"check the network between these hosts: {_DOCTOR}"),
    ADDRESS: Cause(False, "set train_job_address to an address that the others reach"),
    BLOCKED: Cause(False, "open the port to the other hosts: playbooks/setup.yml does"),
    PROXY: Cause(False, "take the proxy out of train_job_environment, or set no_grpc_proxy"),
    WEIGHTS: Cause(False, f"check what differs between the hosts: {_DOCTOR}"),
}

#: Exceptions that come from the surroundings, not from the script.
_PASSING = re.compile(
    r"(?:ConnectionError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|TimeoutError|"
    r"TrainingError: lost contact|UnavailableError|AbortedError|CancelledError|"
    r"DeadlineExceededError|Stale file handle|Input/output error)"
)
#: What a script imports that is not there.
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<name>\w+)")
#: How a script exits that was asked to end.
TERMINATED = {128 + signum for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}
#: What kills a process from outside; other signals come from what it does.
_FROM_OUTSIDE = {-signum for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}
#: The longest pause before a restart, in seconds.
_LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Failure:
    """How an attempt failed."""

    cause: str
    root_cause: str | None  # the task; None where no single one was at fault
    exit_code: int | None  # of its script, None where it is not known
    reason: str
    step: int | None  # the last one that was reported before

    @property
    def place(self) -> tuple[str, str | None, int | None]:
        """What two attempts have in common that failed in the same way."""
        return self.cause, self.root_cause, self.step

    @property
    def again(self) -> bool:
        """Whether the cause is worth another try."""
        if self.cause == ends.EXIT:
            return self.exit_code in TERMINATED or bool(_PASSING.search(self.reason))
        if self.cause == ends.DOWNLOAD:
            return self.step is not None  # the data were there; the network may come back
        return CAUSES[self.cause].again

    @property
    def from_outside(self) -> bool:
        """Whether the job has no part in it, so that it may happen twice at the same step."""
        if self.cause in (ends.SIGNAL, ends.EXIT):
            return self.exit_code in _FROM_OUTSIDE | TERMINATED
        return self.cause not in (ends.MEMORY, ends.HUNG, ends.INTERNAL, ends.DOWNLOAD)

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.cause == ends.EXIT and self.again:
            return CAUSES[NETWORK].remedy if self.exit_code not in TERMINATED else ""
        if self.cause == ends.EXIT and (missing := _MISSING.search(self.reason)):
            return (
                f"bring {missing['name']}: its package as in roles/tensorflow/README.md (Packages "
                "of a script), or with --include if it is a file or folder of yours"
            )
        return CAUSES[self.cause].remedy


def failure_of(result: Result) -> Failure:
    """Return how an attempt failed, from its ``result.json``."""
    code, reason = None, ""
    for rank in result["ranks"]:
        if rank["task"] == result["root_cause"]:
            code, reason = rank["exit_code"], rank["reason"] or ""
    return Failure(result["cause"] or NETWORK, result["root_cause"], code, reason, result["step"])


def why_not_again(failure: Failure, before: Failure | None, restarts: int, most: int) -> str:
    """Return why a job is not started again after ``failure``; empty if it is. It was started again
    ``restarts`` times, of ``most``, and failed ``before``.
    """
    if not failure.again:
        return "it would fail in the same way again"
    if before and failure.place == before.place and not failure.from_outside:
        where = f"step {failure.step}" if failure.step is not None else "the start"
        return f"it has failed at {where} in the same way twice"
    if restarts >= most:
        return (
            f"it was started again {restarts} times, the limit is {most} (train_job_max_restarts)"
        )
    return ""


def next_attempt(result: Result, run_dir: Path, supervised: bool) -> Result:
    """Return what ``result.json`` says of a next attempt; ``supervised``: somebody starts it."""
    manifest = read_manifest(run_dir)
    if manifest is None or result["state"] != "failed":
        return {"restart": False, "restart_reason": "", "restarts_left": 0, "restart_delay": 0.0}
    policy, made, before = manifest["policy"], records.restarts_made(manifest), _before(run_dir)
    most = int(policy["max_restarts"])
    why_not = why_not_again(failure_of(result), failure_of(before) if before else None, made, most)
    restart = supervised and not why_not
    delay = min(_LONGEST_DELAY, float(policy["restart_delay"]) * 2**made)
    return {
        "restart": restart,
        "restart_reason": why_not if most else "",
        "restarts_left": max(0, most - made),
        "restart_delay": delay if restart else 0.0,
    }


def give_up(run_dir: Path, message: str, reason: str) -> None:
    """Write into ``result.json`` that no attempt follows after all: the next one was refused."""
    # What the attempt has left may have made room already for the one that was refused.
    last = read_result(run_dir) or _before(run_dir)
    if last is not None:
        ended: Result = {"message": message, "restart": False, "restart_reason": reason}
        records.write_json(str(run_dir / RESULT_FILE), {**last, **ended})


def _before(run_dir: Path) -> Result | None:
    """Return the last result that was set aside for another attempt."""
    ended = (run_dir / records.ATTEMPTS_DIR).glob(f"*/{RESULT_FILE}")
    last = max(ended, key=lambda path: int(path.parent.name), default=None)
    return read_result(last.parent) if last else None
