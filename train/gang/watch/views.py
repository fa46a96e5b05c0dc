"""The state of a rank, derived from its host's reports, and the lines of its log to show."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from train.gang.job_records import RankResult
from train.gang.watch.causes import TERMINATED, exception_in, last_line_in
from train.gang.watch.script_faults import known_fault
from train.host import (
    console,
    end_causes,
    ends,
    frameworks,
    plain_text,
    progress_records,
    records,
    tracebacks,
)
from train.host.progress_records import Progress
from train.host.records import ABSENT, RankState
from train.host.terminal import LogLines

TAIL_LINES = 20
#: Number of lines at a log's end to search for the error that ended a script.
_END_LINES = 400
#: Maximum characters to keep of a line.
_LINE = 500
#: Lines to show of a rank that was killed by a signal, and of its stacks if it crashed.
_KILLED_LINES, _STACK_LINES = 2, 12
#: Seconds that a host waits for updates before it answers without any.
WAIT = 5.0
#: Seconds of delay of an answer after which a host is unresponsive.
UNRESPONSIVE = 2.0
#: Seconds of delay after which another request would most likely not be answered either.
GONE = 15.0
#: Phases in a script's records before it is at work.
_BEGINNING = ("loading", "starting", "waiting")

#: Messages in the log of a rank that failed because another one did.
_OF_FRAMEWORK = (
    r"TrainingError: \S+ \(\S+\) was unresponsive|"
    # gloo, with which JAX and PyTorch exchange data of CPUs, and NCCL
    r"\bgloo/transport/|\bGloo [\w-]+ failed|Connection closed by (?:remote )?peer|"
    r"ncclRemoteError|remote process exit|collective operation timeout|"
    # PyTorch's store and JAX's service, to which all ranks connect
    r"Did the remote server shutdown or crash|DistStoreError|DistNetworkError|"
    r"GetKeyValue\(\) timed out|(?:sendBytes|recvValue) failed|monitoredBarrier|"
    # gRPC
    r"failed to connect to all addresses"
)
#: The same in output of TensorFlow or JAX. In an error of the script, these words prove nothing.
_SECONDARY = re.compile(
    r"UnavailableError|AbortedError|CancelledError|DeadlineExceededError|coordination service|"
    r"CoordinationService|heartbeat|Connection reset by peer|Socket closed|Connection refused|"
    r"failed to connect to all addresses|Barrier|barrier|recvmsg|" + _OF_FRAMEWORK,
)
_LOST_BY_FRAMEWORK = re.compile(
    _OF_FRAMEWORK
    + r"|^(?:[\w.]+\.)?(?:UnavailableError|AbortedError|CancelledError|DeadlineExceededError)\b"
    r"|^(?:[\w.]+\.)?(?:Dist\w*Error|HorovodInternalError|(?:_\w*)?RpcError)\b.*"
    r"(?:Connection reset by peer|Connection refused|Socket closed|timed out|timeout|UNAVAILABLE)"
)
#: Python's errors of a connection, which may have been one to another rank, or to any server.
_LOST_CONNECTION = re.compile(
    r"^(?:[\w.]+\.)?(?:Connection\w*Error|BrokenPipeError)\b|"
    r"^(?:RuntimeError|OSError): .{0,40}"
    r"(?:Connection reset by peer|Connection refused|Socket closed|Broken pipe)"
)
#: Messages with which JAX and NCCL abort the process of a rank that lost another one.
_ABORTED = re.compile(
    r"the JAX distributed service detected fatal errors|collective operation timeout|"
    r"taking the entire process down"
)
#: The same if another rank was asked to end; see train/training/loop.py.
_WITH_ANOTHER = "ends with another rank, asked to end"

_OF_TENSORFLOW = re.compile(r"tensorflow\.")
#: Errors of JAX and of train/worker.py, which quote the messages of the exchange.
_QUOTING = re.compile(
    r"jax(?:lib)?\.|(?:[\w.]+\.)?XlaRuntimeError\b|"
    r"(?:[\w.]+\.)?TrainingError: (?:lost contact with|cannot join the gang) "
)
#: TensorFlow's errors about a rank's own actions, unless another rank reported them.
_OF_ITS_OWN = re.compile(
    r"tensorflow\.[\w.]*\.(?:NotFoundError|InvalidArgumentError|ResourceExhaustedError|DataLossError|"
    r"PermissionDeniedError|AlreadyExistsError|OutOfRangeError|UnimplementedError)\b"
)
#: Causes that concern only a rank's own host, although their texts may be about connections.
_OF_ONE_HOST = (end_causes.DOWNLOAD, end_causes.MEMORY, end_causes.DISK)
_REPORTED = re.compile(r"Error reported from /job:|remote target /job:")


@dataclass(frozen=True)
class Target:
    """A rank to follow: its inventory host and the result of ``stage`` or ``state``."""

    host: str
    task: str
    rank_dir: str
    host_python: str
    place: str  # equal for ranks that one request can cover: one machine, one user
    non_training: bool
    start_error: str = ""  # why the host did not start the rank, or empty if it did
    attempt: int = 1  # the rank's attempt; data of other attempts is ignored
    script: str = ""  # path of the script on the control node, if known
    framework: str = frameworks.TENSORFLOW
    job: str = ""

    @property
    def expendable(self) -> bool:
        """Whether training can continue without the rank: a worker with parameter servers."""
        return self.non_training and self.task.startswith("worker-")

    def is_of_attempt(self, state: RankState) -> bool:
        """Return whether a state belongs to the followed attempt."""
        return state.get("attempt", self.attempt) == self.attempt


class LogEnd:
    """The last lines of a log, without TensorFlow's messages. A progress bar counts as one line."""

    def __init__(self) -> None:
        self._lines = LogLines(interval=float("inf"))
        self.lines: deque[str] = deque(maxlen=_END_LINES)

    @property
    def current(self) -> str:
        """The unfinished last line."""
        return plain_text.clean(self._lines.current, _LINE)

    def add(self, text: str) -> None:
        """Add the next part of the log."""
        for line in self._lines.feed(text.encode("utf-8", "replace")):
            is_chatter = console.is_of_framework(line, errors=False)
            if not is_chatter and not console.is_unfinished_bar(line):
                self.lines.append(plain_text.clean(line, _LINE))


def _is_passing(line: str) -> bool:
    """Return whether a line is a message of TensorFlow or an unfinished progress bar."""
    return console.is_of_framework(line) or console.is_unfinished_bar(line)


@dataclass(eq=False)
class View:
    """The known state of a rank. Times in its fields are in seconds of the monotonic clock."""

    target: Target
    state: RankState = field(default_factory=lambda: RankState(phase=ABSENT))
    record: Progress = field(default_factory=lambda: Progress())
    metrics: dict[str, float | str] = field(default_factory=dict)
    final_metrics: dict[str, float | str] = field(default_factory=dict)  # of whole epochs
    weights_sha256: str | None = None
    stride: int = 0  # maximum number of steps between two of its records
    log: LogEnd = field(default_factory=lambda: LogEnd())  # of the fetched part
    newest: LogEnd | None = None  # end of the log on the host, until all of it is fetched
    wait: float = WAIT  # how long its host may take to answer
    asked: float | None = None  # time of a request that its host has not answered yet
    unresponsive_since: float | None = None  # when its host first failed to answer
    error: str = ""  # why its host did not answer
    drained: bool = False  # whether its host has nothing more to send
    unsaved: str = ""  # why the newest part of its files could not be written
    offset: float = 0.0  # seconds by which the host's clock is behind this one
    frozen_since: float | None = None  # when its process was first seen stopped
    last_update_at: float = 0.0  # when its host last reported; 0 for never
    stepped: float | None = None  # when a new step was last seen
    known: dict[str, int] = field(default_factory=dict)  # received bytes of files, written or not
    rest: str = ""  # the incomplete last line of its progress
    lines: int = 0  # received lines of progress
    received: int = 0  # received bytes of its files
    left: int = 0  # bytes of its files that are still to be fetched
    goal: dict[str, int] = field(default_factory=dict)  # final sizes of files, once it has ended
    left_out: dict[str, int] = field(default_factory=dict)  # bytes of files that are not fetched
    event_at: float = 0.0  # when its last event was written

    @property
    def phase(self) -> str:
        """The phase of the rank's state."""
        return self.state["phase"]

    @property
    def final(self) -> bool:
        """Whether the rank has ended."""
        return self.phase in records.FINAL_PHASES

    @property
    def ended_at(self) -> float:
        """The Unix time when the rank ended, by the control node's clock; near 0 if unknown."""
        return float(self.state.get("ended_at") or 0.0) + self.offset

    @property
    def began_at(self) -> float:
        """The Unix time when the rank was started, by the control node's clock; 0 if unknown."""
        return self._at("started_at")

    @property
    def running_at(self) -> float:
        """The Unix time when the rank was first up, by the control node's clock; 0 if unknown."""
        return self._at("running_at")

    def _at(self, name: str) -> float:
        value: Any = self.state.get(name)
        return float(value) + self.offset if value else 0.0

    @property
    def last_line(self) -> str:
        """The last line of the script's own output, or an empty string."""
        log = self.newest or self.log
        own = (line for line in (log.current, *reversed(self.tail)) if not _is_passing(line))
        return next(filter(None, own), "")

    @property
    def was_running(self) -> bool:
        """Whether the rank is up, or was up before its end."""
        return "running_at" in self.state

    @property
    def at_work(self) -> bool:
        """Whether the script is past its beginning, according to its records."""
        return self.record.get("phase") not in _BEGINNING

    @property
    def may_end(self) -> bool:
        """Whether the rank runs and may end by itself, because its script writes progress records.

        Non-training tasks without records serve until they are stopped.
        """
        own = bool(self.record) and self.record.get("source") != "console"
        return own and self.phase == records.RUNNING and not self.error

    def unresponsive_for(self, now: float) -> float:
        """Return the seconds by which the host's answer is late."""
        return max(0.0, now - self.unresponsive_from(now))

    def unresponsive_from(self, now: float) -> float:
        """Return the time when the host's answer was due, or ``now`` if it is not late.

        Times are those of the monotonic clock. A frozen host sends nothing, not even an error.
        """
        asked = self.asked  # another thread sets it
        owed = now if asked is None else min(now, asked + self.wait)
        return owed if self.unresponsive_since is None else min(owed, self.unresponsive_since)

    def is_unresponsive(self, now: float) -> bool:
        """Return whether the host of a rank that has not ended is too late with its answer."""
        return not self.final and (bool(self.error) or self.unresponsive_for(now) > UNRESPONSIVE)

    def is_gone(self, now: float) -> bool:
        """Return whether a host that does not answer will not answer another request either.

        A host that is only a few seconds late may be busy.
        """
        return bool(self.error) or self.unresponsive_for(now) > GONE

    @property
    def tail(self) -> list[str]:
        """The last non-empty lines of the log."""
        return [line for line in (self.newest or self.log).lines if line.strip()][-TAIL_LINES:]

    @property
    def end_of_log(self) -> list[str]:
        """The last lines of the log, including empty and unfinished lines."""
        log = self.newest or self.log
        return [*log.lines, log.current]

    def add_log(self, text: str, last: str = "") -> None:
        """Add the next ``text`` of the log.

        ``last`` is the log's end on the host, or empty if the text extends to it.
        """
        self.log.add(text)
        self.newest = None
        if last:
            self.newest = LogEnd()
            self.newest.add(last.partition("\n")[2] or last)  # the first line may be cut off

    def whole_lines(self, text: str, newest: int, after_gap: bool) -> str:
        """Return the lines of progress that are complete with the next ``text``.

        If ``newest`` is not 0, return only lines within that many last characters. With
        ``after_gap``, the text does not continue the earlier one.
        """
        before = "" if after_gap else self.rest
        complete, newline, rest = (before + text).rpartition("\n")
        if len(rest) > progress_records.MAX_LINE:
            rest = rest[: progress_records.MAX_LINE + 1]  # too long in any case
        self.rest = rest
        if newest and len(complete) > newest:
            complete = complete[-newest:].partition("\n")[2]
        return complete + newline

    def last_words(self, cause: str) -> Sequence[str]:
        """Return the lines of the log to show.

        They are the error that ended the script, its stack if it crashed or hung, the last two
        lines if it was killed, or else the last TAIL_LINES lines.
        """
        lines = self.end_of_log
        code = self.state.get("exit_code") or 0
        if code > 0 and code not in TERMINATED:
            ended = tracebacks.ending(lines, code)
            if ended is not None:
                return ended.shown
        lines = [line for line in lines if line.strip()]
        stack = tracebacks.stack_of(lines) if -code in ends.CRASHES else []
        killed = code < 0 and cause in (end_causes.SIGNAL, end_causes.MEMORY)
        return stack[:_STACK_LINES] or lines[-_KILLED_LINES if killed else -TAIL_LINES :]

    def add_progress(self, found: Iterable[Progress]) -> None:
        """Keep the last progress record, with missing fields filled in from earlier ones."""
        for record in found:
            before, step = self.record.get("step"), record.get("step")
            if before is not None and step is not None:
                self.stride = max(self.stride, step - before)
            self.record = progress_records.with_earlier(record, self.record)
            self.metrics = record.get("metrics") or self.metrics
            if progress_records.is_whole(record):
                self.final_metrics = record.get("metrics") or self.final_metrics
            self.weights_sha256 = record.get("weights_sha256", self.weights_sha256)

    def summary(self) -> RankResult:
        """Return the rank's part of ``result.json``."""
        return {
            "task": self.target.task,
            "host": self.target.host,
            "phase": self.phase,
            "exit_code": self.state.get("exit_code"),
            "cause": self.state.get("cause"),
            "reason": self.state.get("reason") or self.error,
            "weights_sha256": self.weights_sha256,
        }


def views_in_training(views: Sequence[View]) -> list[View]:
    """Return the training ranks; if there are none, all workers, or else all ranks.

    The list is never empty, because a job without any rank to judge would count as completed.
    """
    training = [view for view in views if not view.target.non_training]
    workers = [view for view in views if view.target.task.startswith(("chief-", "worker-"))]
    return training or workers or list(views)


def lost_a_connection(view: View) -> bool:
    """Return whether only Python itself reports that a failed rank lost a connection.

    It may have been a connection to a server that is not a part of the gang.
    """
    exception = exception_in(str(view.state.get("reason") or ""))
    of_framework = any(
        pattern.search(exception) for pattern in (_OF_TENSORFLOW, _QUOTING, _LOST_BY_FRAMEWORK)
    )
    return not of_framework and bool(_LOST_CONNECTION.search(exception))


def is_secondary(view: View) -> bool:
    """Return whether a failed rank seems to have failed or hung because of another rank."""
    if view.state.get("stuck_in_framework"):
        return True
    exit_code = view.state.get("exit_code")
    if exit_code == -signal.SIGABRT:
        return any(_ABORTED.search(line) for line in view.end_of_log)
    if exit_code is None or exit_code < 0 or view.state.get("cause") in _OF_ONE_HOST:
        return False
    if exit_code in TERMINATED:
        # Messages of TensorFlow about ranks that ended with it do not show why it was asked to end.
        return any(_WITH_ANOTHER in line for line in view.tail)
    # A bug of the script, whatever TensorFlow logged while the process ended.
    reason = str(view.state.get("reason") or "")
    exception, lines = exception_in(reason), list(view.tail)
    if known_fault(exception):
        return False
    if _QUOTING.match(exception):
        return bool(_SECONDARY.search(exception))
    if exception and not _OF_TENSORFLOW.match(exception):
        by_framework = _LOST_BY_FRAMEWORK.search(exception)
        return bool(by_framework or _LOST_CONNECTION.search(exception))
    if _REPORTED.search(exception):
        return True
    if _OF_ITS_OWN.match(exception):
        return False
    if said := last_line_in(reason):
        ended = (n for n, line in enumerate(lines, 1) if said[:80] in " ".join(line.split()))
        lines = lines[: max(ended, default=len(lines))]
    return any(_SECONDARY.search(line) for line in [exception, *lines])
