"""What is known of a rank from what its host reports, and how it is shown."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from train.gang.records import RankResult
from train.gang.watch.causes import TERMINATED
from train.host import ranks as host_ranks
from train.host import records
from train.host.records import Progress, State

TAIL_LINES = 20
#: Seconds that a host waits for updates before it answers without.
WAIT = 5.0
#: A host that has owed an answer for this many seconds is unresponsive.
UNRESPONSIVE = 2.0
#: The phases of a script's records before it is at work.
_BEGINNING = ("loading", "starting", "waiting")

#: What TensorFlow logs at every start: of barriers and the like, too.
_CHATTER = re.compile(
    r"[IW]\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages before absl|"
    r"To enable the following instructions: "
)
#: What a rank logs when it fell because another one did.
_SECONDARY = re.compile(
    r"UnavailableError|AbortedError|CancelledError|DeadlineExceededError|coordination service|"
    r"CoordinationService|heartbeat|Connection reset by peer|Socket closed|Connection refused|"
    r"failed to connect to all addresses|Barrier|barrier|recvmsg|"
    r"TrainingError: \S+ \(\S+\) was unresponsive",
)
#: The same where another one was asked to end; see train/training/loop.py.
_WITH_ANOTHER = "ends with another rank, asked to end"

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")
_OF_TENSORFLOW = re.compile(r"tensorflow\.")


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

    @property
    def spare(self) -> bool:
        """Whether a training can do without it: a worker of parameter servers."""
        return self.non_training and self.task.startswith("worker-")

    def is_of_attempt(self, state: State) -> bool:
        """Tell whether a state is of the attempt that is followed."""
        return state.get("attempt", self.attempt) == self.attempt


@dataclass(eq=False)
class View:
    """What is known of one rank; times are those of the monotonic clock, in seconds."""

    target: Target
    state: State = field(default_factory=lambda: State(phase=host_ranks.ABSENT))
    record: Progress = field(default_factory=lambda: Progress())
    metrics: dict[str, float | str] = field(default_factory=dict)
    weights_sha256: str | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))  # of the log
    fetched_tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
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
    def last_line(self) -> str:
        """The last line of the rank's log; empty before the first."""
        return self.tail[-1] if self.tail else ""

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
        """Tell whether the host of a rank that lives owes an answer for too long."""
        return not self.final and (bool(self.trouble) or self.silence(now) > UNRESPONSIVE)

    def add_log(self, text: str, last: str = "") -> None:
        """Keep the last lines of the log, without TensorFlow's chatter: of ``last``, its end on the
        host, as long as the fetched ``text`` has not come so far.
        """
        self.fetched_tail.extend(_lines_of(text))
        self.tail.clear()
        self.tail.extend(_lines_of(last.partition("\n")[2] or last) or self.fetched_tail)

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

    def add_progress(self, found: Iterable[Progress]) -> None:
        """Keep the last progress record, and what the earlier ones hold and it does not."""
        for record in found:
            # Keras' lines and a script's own records count by themselves.
            same = record.get("source") == self.record.get("source")
            self.record = {**self.record, **record} if same else record
            self.metrics = record.get("metrics") or self.metrics
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


def _lines_of(text: str) -> list[str]:
    """Return the lines of a log that are shown: none of TensorFlow's chatter."""
    found = re.split(r"[\r\n]+", text)
    shown = [line.rstrip() for line in found if line.strip() and not _CHATTER.match(line)]
    return [records.clean(line, 500) for line in shown[-TAIL_LINES:]]


def is_secondary(view: View) -> bool:
    """Tell whether a failed rank seems to have fallen, or waited in TensorFlow, for another one."""
    if view.state.get("stuck_in_framework"):
        return True
    exit_code = view.state.get("exit_code")
    if exit_code is None or exit_code < 0:
        return False
    if exit_code in TERMINATED:
        # What TensorFlow logs of the others, who end with it, is not why it was asked to end.
        return any(_WITH_ANOTHER in line for line in view.tail)
    # A bug of its own, whatever TensorFlow logged while the process ended.
    _, said, exception = str(view.state.get("reason") or "").partition(": ")
    if said and _EXCEPTION.match(exception) and not _OF_TENSORFLOW.match(exception):
        return bool(_SECONDARY.search(exception))
    return any(_SECONDARY.search(line) for line in view.tail)
