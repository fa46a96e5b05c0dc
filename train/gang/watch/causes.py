"""Causes of failures, their remedies, and the decision whether another attempt follows.

The names of the causes are in host/end_causes.py and cause_names.py.
The decision is made once, from the job's folder on the control node, and written to
``result.json``. All other code follows it.
"""

from __future__ import annotations

import itertools
import re
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from train.gang import cause_names
from train.gang.job_records import (
    RESULT_FILE,
    Manifest,
    RankResult,
    ResultRecord,
    read_manifest,
    read_result,
)
from train.gang.packages.names import package_of
from train.gang.watch.script_faults import known_fault
from train.host import end_causes, frameworks, json_files, rank_files, records, tracebacks
from train.host.suggested import suggest


class Cause(NamedTuple):
    """The handling of a cause: ``again``, whether to restart the job unchanged, and a remedy.

    Commands in the remedy are markers; see train/host/suggested.py.
    """

    again: bool
    remedy: str


#: Remedies for crashes in native code, by signal.
_CRASHED = "it crashed in native code, and the stacks in its log show where: "
CRASHES = {
    signal.SIGSEGV: _CRASHED + "update or replace the package at the top of the stack, and check "
    "that its version fits TensorFlow's",
    signal.SIGABRT: _CRASHED + "a library aborted; its message precedes the stacks",
    signal.SIGBUS: _CRASHED
    + "often, /dev/shm or a disk is full, or a file was truncated while it was mapped",
    signal.SIGFPE: _CRASHED
    + "often, an integer was divided by zero, for example with an empty batch",
    signal.SIGILL: _CRASHED
    + "this CPU lacks instructions that the build uses: install a suitable build, or remove "
    "the host",
}

_DOCTOR = f"`{suggest('doctor')}`"

CAUSES = {
    end_causes.EXIT: Cause(False, "fix the script: it would fail the same way again"),
    end_causes.SIGNAL: Cause(True, "find out who sent the signal"),
    end_causes.MEMORY: Cause(True, "lower the batch size, or give the host or the GPU more memory"),
    end_causes.DISK: Cause(False, f"free up space on that disk, then run `{suggest('restart')}`"),
    end_causes.DOWNLOAD: Cause(
        False,
        "copy the data to the hosts: list it in training_data, then run "
        f"`{suggest('setup', tags='training_data')}`",
    ),
    end_causes.START_TIMEOUT: Cause(
        False,
        "check in the rank's log what the script does before it creates its strategy, or raise "
        "the limit named above",
    ),
    end_causes.HUNG: Cause(
        True,
        "check the stacks, which show where the script was waiting; train_job_hang_factor sets "
        "the limit",
    ),
    end_causes.LINGERED: Cause(
        False, "make the script end the threads and processes that it starts, and exit"
    ),
    end_causes.MAX_RUNTIME: Cause(
        False, f"raise train_job_max_runtime, then run `{suggest('restart')}`"
    ),
    end_causes.SUPERVISOR: Cause(True, "find out who killed the supervisor"),
    end_causes.INTERNAL: Cause(
        True, "this is a bug in the launcher: report it with the rank's supervisor.log"
    ),
    end_causes.REBOOT: Cause(True, "find out why the host rebooted"),
    end_causes.UNSTARTABLE: Cause(
        False,
        f"run `{suggest('setup', tags='tensorflow')}`, or set train_job_python to an "
        "interpreter with TensorFlow",
    ),
    end_causes.BUSY: Cause(
        False, "wait until the other job ends, or choose another train_job_port"
    ),
    cause_names.UNREACHABLE: Cause(True, "check the host and its network"),
    cause_names.NOT_STARTED: Cause(True, "check the error that the host reports"),
    cause_names.FROZEN: Cause(True, "check what stopped the process or the host"),
    cause_names.NETWORK: Cause(True, f"check the network between these hosts with {_DOCTOR}"),
    cause_names.ADDRESS: Cause(
        False, "set train_job_address to an address that the other hosts can reach"
    ),
    cause_names.BLOCKED: Cause(
        False, f"open the port to the other hosts with `{suggest('setup', tags='firewall')}`"
    ),
    cause_names.PROXY: Cause(
        False, "remove the proxy from train_job_environment, or set no_grpc_proxy"
    ),
    cause_names.LEFT: Cause(
        False,
        "give all ranks the same number of steps (`.repeat()` with steps_per_epoch "
        "rounded down), evaluate and save in all ranks if a strategy is used, and "
        "make the ranks wait for each other at the end (docs/your-script.md)",
    ),
    cause_names.ALONE: Cause(
        False, "create the strategy in every rank, and leave TF_CONFIG unchanged"
    ),
    cause_names.WEIGHTS: Cause(False, f"check what differs between the hosts with {_DOCTOR}"),
}

#: Remedies that differ for scripts of other frameworks than TensorFlow.
_START_TIMEOUT = (
    "check in the rank's log what the script does before {}, or raise the limit named above"
)
_OF_FRAMEWORK = {
    frameworks.JAX: {
        end_causes.START_TIMEOUT: _START_TIMEOUT.format("jax.distributed.initialize"),
        cause_names.ALONE: "call jax.distributed.initialize or keras.distribution.initialize in "
        "every rank, with JAX_NUM_PROCESSES and JAX_PROCESS_ID (docs/your-script.md)",
    },
    frameworks.TORCH: {
        end_causes.START_TIMEOUT: _START_TIMEOUT.format("torch.distributed.init_process_group"),
        cause_names.ALONE: "call torch.distributed.init_process_group in every rank, and leave "
        "RANK, WORLD_SIZE and MASTER_ADDR unchanged",
    },
}
_OF_OTHERS = {
    end_causes.UNSTARTABLE: "set train_job_python to an interpreter that exists on the host",
    cause_names.LEFT: "give all ranks the same number of steps, and make them wait for each other "
    "at the end (docs/your-script.md)",
}

#: Exceptions whose causes are outside the script, such as the network. They end the script, or
#: the message of another exception names them.
_PASSING = re.compile(
    r"(?:^|[:;] |\bCaught )[\w.]*(?:ConnectionError|ConnectionResetError|BrokenPipeError|"
    r"ConnectionRefusedError|TimeoutError|UnavailableError|AbortedError|CancelledError|"
    r"DeadlineExceededError)\b"
    r"|TrainingError: lost contact|Stale file handle|Input/output error"
)
_EXITED = re.compile(
    r"exited with code \d+"
    rf"(?:: (?:(?:{tracebacks.THREAD}|{tracebacks.CHILD}|{tracebacks.TASK}): )?(?P<error>.*)"
    r"|; its last line: (?P<line>.*))",
    re.DOTALL,
)
#: A missing module that a script imports.
_MISSING = re.compile(r"(?:ModuleNotFoundError: |: )No module named '?(?P<name>\w+)")
#: Exit codes of a script that was asked to end.
TERMINATED = {128 + signum for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}
#: Exit codes for signals that other processes send. Other signals result from the script's actions.
_FROM_OUTSIDE = {-signum for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}
#: Maximum characters of a line about an earlier attempt.
_LINE = 200
#: Maximum pause before a restart, in seconds.
_LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Failure:
    """The failure of an attempt."""

    cause: str
    root_cause: str | None  # the task, or None if no single one was at fault
    exit_code: int | None  # exit code of that task's script, or None if unknown
    reason: str
    step: int | None  # the last step reported before the failure
    script: str = ""  # path of the script on the control node, if known
    framework: str = frameworks.TENSORFLOW
    all_answer: bool = True  # whether the hosts of all ranks still answered at the end

    @property
    def place(self) -> tuple[str, str | None, int | None]:
        """A value that is equal for two attempts that failed in the same way."""
        return self.cause, self.root_cause, self.step

    @property
    def again(self) -> bool:
        """Whether the cause justifies another attempt."""
        error = exception_in(self.reason)
        if self.cause in (end_causes.EXIT, cause_names.NETWORK) and known_fault(error):
            return False
        if self.cause == end_causes.EXIT:
            return self.exit_code in TERMINATED or bool(_PASSING.search(error))
        if self.cause == end_causes.DOWNLOAD:
            return self.step is not None  # the data were there, so the network may recover
        if self.cause == end_causes.SIGNAL and self.exit_code == -signal.SIGILL:
            return False
        return CAUSES[self.cause].again

    @property
    def from_outside(self) -> bool:
        """Whether the cause is outside the job, so that it may occur twice at a step by chance."""
        if self.cause in (end_causes.SIGNAL, end_causes.EXIT):
            return self.exit_code in _FROM_OUTSIDE | TERMINATED
        if self.cause == cause_names.NETWORK:
            return not self.all_answer
        return self.cause not in (
            end_causes.MEMORY,
            end_causes.HUNG,
            end_causes.INTERNAL,
            end_causes.DOWNLOAD,
        )

    @property
    def remedy(self) -> str:
        """The remedy, with markers for commands."""
        error = exception_in(self.reason)
        if self.cause in (end_causes.EXIT, cause_names.NETWORK) and (fault := known_fault(error)):
            return fault
        if self.cause == end_causes.EXIT and self.again:
            return CAUSES[cause_names.NETWORK].remedy if self.exit_code not in TERMINATED else ""
        if self.cause == end_causes.EXIT and (missing := _MISSING.search(error)):
            return self._remedy_for_module(missing["name"])
        if self.cause == end_causes.SIGNAL and self.exit_code is not None:
            for signum, remedy in CRASHES.items():
                if self.exit_code == -signum:
                    return remedy
        return remedy_of(self.cause, self.framework)

    def _remedy_for_module(self, name: str) -> str:
        folder = Path(self.script) if Path(self.script).is_dir() else Path(self.script).parent
        if self.script:
            if folder.name == name and folder != Path(self.script):
                module = f"{name}.{Path(self.script).stem}"
                words = f"--script {shlex.quote(str(folder.parent))} --module {shlex.quote(module)}"
                return f"run it as part of its package: {words}"
            for path in (folder, folder.parent / name, folder.parent / f"{name}.py"):
                if path.stem == name and path.exists():
                    return f"pass your own package with --include {shlex.quote(str(path))}"
        package = package_of(name)
        return (
            f"add {package} to requirements.txt next to the script and pass --requirements, "
            "or pass your own module with --include"
        )


def remedy_of(cause: str, framework: str) -> str:
    """Return the remedy for a cause in a job of a framework."""
    if framework == frameworks.TENSORFLOW:
        return CAUSES[cause].remedy
    of_framework = {**_OF_OTHERS, **_OF_FRAMEWORK.get(framework, {})}
    return of_framework.get(cause, CAUSES[cause].remedy)


def exception_in(reason: str) -> str:
    """Return the error in a reason from host/ends.py, or an empty string."""
    exited = _EXITED.match(reason)
    return (exited["error"] or "") if exited else ""


def last_line_in(reason: str) -> str:
    """Return the last line of output in a reason from host/ends.py, or an empty string."""
    exited = _EXITED.match(reason)
    return (exited["line"] or "") if exited else ""


def failure_of(result: ResultRecord) -> Failure:
    """Return the failure of an attempt, from its ``result.json``."""
    code, reason, answered = None, "", []
    for rank in result["ranks"]:
        if rank["task"] == result["root_cause"]:
            code, reason = rank["exit_code"], rank["reason"] or ""
        answered.append(_answered(rank))
    cause, task, step = result["cause"] or cause_names.NETWORK, result["root_cause"], result["step"]
    return Failure(cause, task, code, reason, step, all_answer=all(answered))


def failure_in(state: records.RankState) -> Failure:
    """Return the failure of a rank from its state."""
    cause, reason = state.get("cause") or cause_names.NETWORK, state.get("reason") or ""
    return Failure(cause, state.get("task"), state.get("exit_code"), reason, state.get("step"))


def _answered(rank: RankResult) -> bool:
    """Return whether a rank's host answered until the end: it has reported how the rank ended."""
    phase = rank.get("phase")
    return phase in records.FINAL_PHASES and (phase != records.FAILED or bool(rank.get("cause")))


def doubled(seconds: float, times: int, most: float) -> float:
    """Return a pause that was doubled after each of some attempts, at most ``most`` seconds."""
    return min(most, seconds * 2.0 ** min(times, 32))  # more would exceed a float


def why_not_again(failure: Failure, before: Failure | None, restarts: int, most: int) -> str:
    """Return the reason why a job is not restarted after ``failure``; empty if it is restarted.

    The job has been restarted ``restarts`` times, and the limit is ``most``. ``before`` is the
    failure of the previous attempt.
    """
    if not failure.again:
        return "it would fail the same way again"
    if before and failure.place == before.place and not failure.from_outside:
        where = f"step {failure.step}" if failure.step is not None else "the start"
        return f"it failed the same way twice at {where}"
    if restarts >= most:
        return f"it was restarted {restarts} times; the limit is {most} (train_job_max_restarts)"
    return ""


def next_attempt(result: ResultRecord, run_dir: Path) -> ResultRecord:
    """Decide whether another attempt follows. Return the fields of ``result.json`` about that."""
    manifest = read_manifest(run_dir)
    is_planned = result.get("cause") in cause_names.PLANNED
    if manifest is None or not (is_planned or result["state"] == "failed"):
        return {"restart": False, "restart_reason": "", "restarts_left": 0, "restart_delay": 0.0}
    policy, made, before = manifest["policy"], records.restarts_made(manifest), _before(run_dir)
    most = int(policy["max_restarts"])
    if is_planned:
        left, delay = max(0, most - made), 0.0
        # A host whose notices are wrong must not keep the gang from training at this speed.
        if in_a_row := _notices_in_a_row(manifest):
            delay = doubled(float(policy["restart_delay"]), in_a_row - 1, _LONGEST_DELAY)
        return {
            "restart": True,
            "restart_reason": "",
            "restarts_left": left,
            "restart_delay": delay,
        }
    why_not = why_not_again(failure_of(result), failure_of(before) if before else None, made, most)
    restart = not why_not
    delay = doubled(float(policy["restart_delay"]), made, _LONGEST_DELAY)
    return {
        "restart": restart,
        "restart_reason": why_not if most else "",
        "restarts_left": max(0, most - made),
        "restart_delay": delay if restart else 0.0,
    }


def _notices_in_a_row(manifest: Manifest) -> int:
    """Return how many of the last attempts were each preceded by a notice of preemption."""
    attempts = reversed(manifest["attempts"])
    return sum(1 for _ in itertools.takewhile(lambda one: one.get("preempted"), attempts))


def last_result(run_dir: Path) -> ResultRecord | None:
    """Return the result of the last attempt that has ended, or None.

    It may have been set aside for an attempt that did not start.
    """
    return read_result(run_dir) or _before(run_dir)


def give_up(run_dir: Path, reason: str) -> None:
    """Write into ``result.json`` that no attempt follows, because the next one was refused."""
    last = last_result(run_dir)
    if last is not None:
        lines = [last.get("message", ""), f"the job could not be restarted: {reason}"]
        lines += earlier_attempts(run_dir, last.get("attempts", 0))
        ended: ResultRecord = {
            "message": "\n".join(lines),
            "restart": False,
            "restart_reason": reason,
        }
        if last.get("cause") == end_causes.PREEMPTED:
            ended["state"] = "failed"
        json_files.write_json(str(run_dir / RESULT_FILE), {**last, **ended})


def stop_before_next(run_dir: Path, reason: str) -> None:
    """Write into ``result.json`` that the job was stopped before its next attempt."""
    last = last_result(run_dir)
    lines = earlier_attempts(run_dir, last.get("attempts", 0) + 1) if last else []
    message = "\n".join([f"the job {reason} between two attempts", *lines])
    if last is not None:
        if not any(line.startswith(f"attempt {last.get('attempts')}:") for line in lines):
            message += f"\nattempt {last.get('attempts')}: {_how(last)}"
        ended: ResultRecord = {
            "state": "stopped",
            "message": message,
            "root_cause": None,
            "cause": None,
        }
        ended |= {"restart": False, "restart_reason": "", "restart_delay": 0.0}
        json_files.write_json(str(run_dir / RESULT_FILE), {**last, **ended})


def earlier_attempts(run_dir: Path, current: int) -> list[str]:
    """Return a line about the end of each attempt before the ``current`` one."""
    folders = (run_dir / rank_files.ATTEMPTS_DIR).glob("*")
    numbers = [int(path.name) for path in folders if path.name.isdigit()]
    lines = []
    for number in sorted(number for number in numbers if number < current):
        if result := read_result(run_dir / rank_files.ATTEMPTS_DIR / str(number)):
            lines.append(f"attempt {number}: {_how(result)}")
    return lines


def _how(result: ResultRecord) -> str:
    """Return one line about how an attempt ended."""
    failure = failure_of(result)
    what = result.get("message", "").partition("\n")[0]
    if failure.root_cause and failure.reason:
        what = f"{failure.root_cause} {failure.reason}"
    where = f" at step {failure.step}" if failure.step is not None else ""
    return tracebacks.bounded(what, _LINE) + where


def _before(run_dir: Path) -> ResultRecord | None:
    """Return the last result that was set aside for a later attempt, or None."""
    ended = (run_dir / rank_files.ATTEMPTS_DIR).glob(f"*/{RESULT_FILE}")
    last = max(ended, key=lambda path: int(path.parent.name), default=None)
    return read_result(last.parent) if last else None
