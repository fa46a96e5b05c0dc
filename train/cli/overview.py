"""What the ranks of a gang's attempt do together: who comes first, who is behind, the time left."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable

from train.gang import lines
from train.gang.records import RankEvent
from train.host import records

#: Seconds over which the pace is measured, and the least for which there is one.
_PACE_WINDOW, _PACE_LEAST = 180.0, 5.0
#: A rank is behind by whole parts of this size, so that small differences do not change the order.
_BEHIND_PART = 0.1
#: The task types that have steps of the training.
_TRAINING = ("chief", "worker")


class Overview:
    """The last updates of an attempt's ranks, by task.

    Attributes:
        attempt: which attempt it is; 0 where that is not known.
        slow: the rank that keeps the others waiting, and nothing where there is none.
    """

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt
        self.ranks: dict[str, RankEvent] = {}
        self.slow = ""
        self._pace: deque[tuple[float, float]] = deque()  # time, part of the steps done then

    def add(self, task: str, seen: RankEvent) -> None:
        """Take an update of a rank."""
        self.ranks[task] = seen
        done, now = self.done(), time.monotonic()
        if done is None:
            return
        if self._pace and done < self._pace[-1][1]:  # the script begins something else
            self._pace.clear()
        if not self._pace or done > self._pace[-1][1]:
            self._pace.append((now, done))
        while len(self._pace) > 2 and self._pace[1][0] < now - _PACE_WINDOW:
            self._pace.popleft()

    def done(self) -> float | None:
        """Return the part of the steps that the rank which is furthest has done."""
        known = [part for part in map(fraction, self.ranks.values()) if part is not None]
        return max(known, default=None)

    def seconds_left(self) -> float | None:
        """Return the time left, by the pace of the last minutes; None where it is not known."""
        done = self._pace[-1][1] if self._pace else 1.0
        if done >= 1.0 or len(self._pace) < 2:
            return None
        then, before = self._pace[0]
        elapsed = time.monotonic() - then
        return elapsed / (done - before) * (1.0 - done) if elapsed >= _PACE_LEAST else None

    def in_order(self, urgent: bool = False) -> list[str]:
        """Return the tasks in the order of TensorFlow's types.

        Args:
            urgent: failed ranks come first, the first failure before the others; then what runs,
                the slowest first; what has ended well comes last.
        """
        tasks = sorted(self.ranks, key=records.task_order)
        furthest = self._furthest()

        def urgency(task: str) -> tuple[float, ...]:
            seen = self.ranks[task]
            if seen["phase"] == records.FAILED:
                return 0, seen["t"]
            if seen["phase"] in records.FINAL_PHASES:
                return 2, 0
            return 1, task != self.slow, -self._behind(task, furthest)

        return sorted(tasks, key=urgency) if urgent else tasks

    def text(self) -> str:
        """Return how many ranks are in which phase, how far they are, and which one is slow."""
        urgent, furthest = self.in_order(urgent=True), self._furthest()
        ordered = [self.ranks[task] for task in urgent]
        found = Counter(lines.phase_of(seen["phase"], seen["progress"]) for seen in ordered)
        counts = ", ".join(f"{number} {phase}" for phase, number in found.items())
        words = [f"{len(self.ranks)} ranks: {counts}"]
        alive = [task for task in urgent if self.ranks[task]["phase"] in records.ALIVE_PHASES]
        if furthest:
            words += lines.counts(max(self.ranks.values(), key=_step)["progress"], "step")
        if alive and (alive[0] == self.slow or self._behind(alive[0], furthest)):
            words.append(f"slowest {alive[0]} at step {_step(self.ranks[alive[0]])}")
        return "  ".join(words)

    def _furthest(self) -> int:
        return max(map(_step, self.ranks.values()), default=0)

    def _behind(self, task: str, furthest: int) -> int:
        """Return how far a rank is behind, in parts of the steps that the one in front has done."""
        missing = furthest - _step(self.ranks[task]) if task.startswith(_TRAINING) else 0
        return int(missing / (furthest * _BEHIND_PART)) if furthest else 0


def fraction(seen: RankEvent) -> float | None:
    """Return the part of the steps that are done, 0 to 1; None where it is not known."""
    step, steps = seen["progress"].get("step"), seen["progress"].get("steps")
    return min(1.0, step / steps) if steps and step is not None else None


def short_names(hosts: Iterable[str]) -> dict[str, str]:
    """Return the hosts' names without their domain, where they still differ without it."""
    names = {host: host.partition(".")[0] for host in hosts}
    whole = len(set(names.values())) < len(names) or any(map(str.isdigit, names.values()))
    return {host: host for host in names} if whole else names


def _step(seen: RankEvent) -> int:
    return seen["progress"].get("step") or 0
