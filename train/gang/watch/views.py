"""What is known of a rank from what its host reports, and how it is shown."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from train.gang.records import RankResult
from train.gang.watch.causes import TERMINATED, exception_in, last_line_in
from train.gang.watch.script_faults import known_fault
from train.host import console, ends, records, tracebacks
from train.host import ranks as host_ranks
from train.host.records import Progress, State
from train.host.terminal import LogLines

TAIL_LINES = 20
#: Lines of a log's end in which the error is looked for that ended a script.
_END_LINES = 400
#: Characters of a line that are kept.
_LINE = 500
#: Lines that are shown of a rank which a signal has ended, and of its stacks if it crashed.
_KILLED_LINES, _STACK_LINES = 2, 12
#: Seconds that a host waits for updates before it answers without.
WAIT = 5.0
#: A host that has owed an answer for this many seconds is unresponsive.
UNRESPONSIVE = 2.0
#: The phases of a script's records before it is at work.
_BEGINNING = ("loading", "starting", "waiting")

#: What a rank logs when it fell because another one did.
_SECONDARY = re.compile(
    r"UnavailableError|AbortedError|CancelledError|DeadlineExceededError|coordination service|"
    r"CoordinationService|heartbeat|Connection reset by peer|Socket closed|Connection refused|"
    r"failed to connect to all addresses|Barrier|barrier|recvmsg|"
    r"TrainingError: \S+ \(\S+\) was unresponsive",
)
#: The same where another one was asked to end; see train/training/loop.py.
_WITH_ANOTHER = "ends with another rank, asked to end"

_OF_TENSORFLOW = re.compile(r"tensorflow\.")
#: Errors of TensorFlow about what a rank itself does, unless they were reported by another rank.
_OF_ITS_OWN = re.compile(
    r"tensorflow\.[\w.]*\.(?:NotFoundError|InvalidArgumentError|ResourceExhaustedError|DataLossError|"
    r"PermissionDeniedError|AlreadyExistsError|OutOfRangeError|UnimplementedError)\b"
)
_REPORTED = re.compile(r"Error reported from /job:|remote target /job:")


@dataclass(frozen=True)
class Target:
    """A rank to follow: its inventory host and what ``stage`` or ``state`` returned."""

    host: str
    task: str
    rank_dir: str
    host_python: str
    place: str  # the same for ranks that one request can cover: one machine, one user
    non_training: bool
    start_error: str = ""  # why the host did not start it; empty where it did
    attempt: int = 1  # which start of the gang it is part of; what an earlier one left is not it
    script: str = ""  # its path on the control node, where that is known
    job: str = ""

    @property
    def spare(self) -> bool:
        """Whether a training can do without it: a worker of parameter servers."""
        return self.non_training and self.task.startswith("worker-")

    def is_of_attempt(self, state: State) -> bool:
        """Return whether a state is of the attempt that is followed."""
        return state.get("attempt", self.attempt) == self.attempt


class LogEnd:
    """The last lines of a log, without TensorFlow's chatter; a progress bar is one line."""

    def __init__(self) -> None:
        self._lines = LogLines(interval=float("inf"))
        self.lines: deque[str] = deque(maxlen=_END_LINES)

    @property
    def current(self) -> str:
        """The line that no newline has ended yet."""
        return records.clean(self._lines.current, _LINE)

    def add(self, text: str) -> None:
        """Add the next text of the log."""
        for line in self._lines.feed(text.encode("utf-8", "replace")):
            is_chatter = console.is_of_framework(line, errors=False)
            if not is_chatter and not console.is_unfinished_bar(line):
                self.lines.append(records.clean(line, _LINE))


def _is_passing(line: str) -> bool:
    """Return whether a line says nothing about the script: TensorFlow's, or an unfinished bar."""
    return console.is_of_framework(line) or console.is_unfinished_bar(line)


@dataclass(eq=False)
class View:
    """What is known of one rank; times are those of the monotonic clock, in seconds."""

    target: Target
    state: State = field(default_factory=lambda: State(phase=host_ranks.ABSENT))
    record: Progress = field(default_factory=lambda: Progress())
    metrics: dict[str, float | str] = field(default_factory=dict)
    final_metrics: dict[str, float | str] = field(default_factory=dict)  # of whole epochs
    weights_sha256: str | None = None
    stride: int = 0  # the most steps between two of its records
    log: LogEnd = field(default_factory=lambda: LogEnd())  # of what was fetched
    newest: LogEnd | None = None  # the log's end on the host, before all of it is fetched
    wait: float = WAIT  # for which its host may take to answer
    asked: float | None = None  # when its host was asked that has not answered yet
    silent_since: float | None = None  # when its host first failed to answer
    trouble: str = ""  # why it did not answer
    drained: bool = False  # whether its host has nothing more to send
    offset: float = 0.0  # how far the clock of its host is behind this one's
    frozen_since: float | None = None  # since when its process has been seen stopped
    heard: float = 0.0  # when its host last reported; 0 for never
    stepped: float | None = None  # when it was last seen to have made a step
    known: dict[str, int] = field(default_factory=dict)  # bytes of its files, written here or not
    rest: str = ""  # the last line of its progress, which is not whole yet
    lines: int = 0  # of progress that have come
    received: int = 0  # bytes of its files that have come
    left: int = 0  # bytes of them that are still to come
    goal: dict[str, int] = field(default_factory=dict)  # up to where they count, once it has ended
    left_out: dict[str, int] = field(default_factory=dict)  # bytes of a file that do not come
    event_at: float = 0.0  # when an event about it was written

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
        """When the rank ended, by the clock of the control node (Unix time); 0 if unknown."""
        return float(self.state.get("ended_at") or 0.0) + self.offset

    @property
    def began_at(self) -> float:
        """When the rank was started, by the clock of the control node; 0 if unknown."""
        return self._at("started_at")

    @property
    def running_at(self) -> float:
        """When the rank was up first, by the clock of the control node; 0 if unknown."""
        return self._at("running_at")

    def _at(self, name: str) -> float:
        value: Any = self.state.get(name)
        return float(value) + self.offset if value else 0.0

    @property
    def last_line(self) -> str:
        """The last line of the script's own output, of a progress bar its state; empty before the
        first one.
        """
        log = self.newest or self.log
        own = (line for line in (log.current, *reversed(self.tail)) if not _is_passing(line))
        return next(filter(None, own), "")

    @property
    def was_running(self) -> bool:
        """Whether the rank has been up, now or before its end."""
        return "running_at" in self.state

    @property
    def at_work(self) -> bool:
        """Whether the rank's script is past its beginning, as far as it reports."""
        return self.record.get("phase") not in _BEGINNING

    @property
    def may_end(self) -> bool:
        """Whether the rank runs and may end by itself: its script writes records of its own.

        A non-training task of another kind serves until it is stopped.
        """
        own = bool(self.record) and self.record.get("source") != "console"
        return own and self.phase == records.RUNNING and not self.trouble

    def silence(self, now: float) -> float:
        """Return the seconds for which the host has owed an answer."""
        return max(0.0, now - self.unresponsive_from(now))

    def unresponsive_from(self, now: float) -> float:
        """Return since when the host has owed an answer (monotonic clock); ``now`` if it does not.

        A host that froze sends nothing at all, not even that it cannot be reached.
        """
        asked = self.asked  # another thread sets it
        owed = now if asked is None else min(now, asked + self.wait)
        return owed if self.silent_since is None else min(owed, self.silent_since)

    def is_unresponsive(self, now: float) -> bool:
        """Return whether the host of a rank that lives owes an answer for too long."""
        return not self.final and (bool(self.trouble) or self.silence(now) > UNRESPONSIVE)

    @property
    def tail(self) -> list[str]:
        """The last lines of the log that are not empty."""
        return [line for line in (self.newest or self.log).lines if line.strip()][-TAIL_LINES:]

    @property
    def end_of_log(self) -> list[str]:
        """The last lines of the log, also those that are empty or have no newline yet."""
        log = self.newest or self.log
        return [*log.lines, log.current]

    def add_log(self, text: str, last: str = "") -> None:
        """Add the next ``text`` of the log. ``last`` is the log's end on the host; it is empty if
        the text has come so far.
        """
        self.log.add(text)
        self.newest = None
        if last:
            self.newest = LogEnd()
            self.newest.add(last.partition("\n")[2] or last)  # the first line may be cut off

    def whole_lines(self, text: str, newest: int, after_gap: bool) -> str:
        """Return the lines of its progress that are whole with the next ``text``, or only those in
        the last characters, as many as ``newest`` unless that is 0.
        """
        before = "" if after_gap else self.rest
        complete, newline, rest = (before + text).rpartition("\n")
        if len(rest) > records.MAX_LINE:
            rest = rest[: records.MAX_LINE + 1]  # too long, whatever follows
        self.rest = rest
        if newest and len(complete) > newest:
            complete = complete[-newest:].partition("\n")[2]
        return complete + newline

    def last_words(self, cause: str) -> Sequence[str]:
        """Return the lines of the log to show people: the error that ended the script, its stack
        if it crashed or hung, a line or two if it was killed, or else the last ones.
        """
        lines = self.end_of_log
        code = self.state.get("exit_code") or 0
        if code > 0 and code not in TERMINATED:
            ended = tracebacks.ending(lines, code)
            if ended is not None:
                return ended.shown
        lines = [line for line in lines if line.strip()]
        stack = tracebacks.stack_of(lines) if -code in ends.CRASHES else []
        killed = code < 0 and cause in (ends.SIGNAL, ends.MEMORY)
        return stack[:_STACK_LINES] or lines[-_KILLED_LINES if killed else -TAIL_LINES :]

    def add_progress(self, found: Iterable[Progress]) -> None:
        """Keep the last progress record, and what the earlier ones hold and it does not."""
        for record in found:
            before, step = self.record.get("step"), record.get("step")
            if before is not None and step is not None:
                self.stride = max(self.stride, step - before)
            self.record = records.with_earlier(record, self.record)
            self.metrics = record.get("metrics") or self.metrics
            if records.is_whole(record):
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
            "reason": self.state.get("reason") or self.trouble,
            "weights_sha256": self.weights_sha256,
        }


def views_in_training(views: Sequence[View]) -> list[View]:
    """Return the ranks whose end is that of the training. Where no rank is marked as one, all count
    that belong to the cluster: an empty list has neither completed nor failed.
    """
    training = [view for view in views if not view.target.non_training]
    workers = [view for view in views if view.target.task.startswith(("chief-", "worker-"))]
    return training or workers or list(views)


def is_secondary(view: View) -> bool:
    """Return whether a failed rank seems to have fallen or waited in TensorFlow for another one."""
    if view.state.get("stuck_in_framework"):
        return True
    exit_code = view.state.get("exit_code")
    if exit_code is None or exit_code < 0:
        return False
    if exit_code in TERMINATED:
        # What TensorFlow logs of the others, who end with it, is not why it was asked to end.
        return any(_WITH_ANOTHER in line for line in view.tail)
    # A bug of its own, whatever TensorFlow logged while the process ended.
    reason = str(view.state.get("reason") or "")
    exception, lines = exception_in(reason), list(view.tail)
    if known_fault(exception):
        return False
    if exception and not _OF_TENSORFLOW.match(exception):
        return bool(_SECONDARY.search(exception))
    if _REPORTED.search(exception):
        return True
    if _OF_ITS_OWN.match(exception):
        return False
    if said := last_line_in(reason):
        ended = (n for n, line in enumerate(lines, 1) if said[:80] in " ".join(line.split()))
        lines = lines[: max(ended, default=len(lines))]
    return any(_SECONDARY.search(line) for line in [exception, *lines])
