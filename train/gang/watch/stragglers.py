"""Names the slowest rank of a gang while it runs, and why it is slow as far as can be told.

In a synchronous gang a step takes the same time in all ranks: the others wait for the slow one in
the exchange. So a rank's *own* part of a step is compared, the wait for its examples and the
computing (``step_time`` of its progress records), over steps that all ranks have told of. What the
hosts say of the processors (``host.load``) is evidence for the cause; where a script tells no
times, it is all there is. Standard library only.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from train.gang.watch.evidence import Look, Looks, hindrances, number, resending, span

#: Seconds and records of each rank that a judgement rests on, at least.
WINDOW_S = 20.0
RECORDS = 3
#: What the gang must lose by its slowest rank for that to be told, as a part of a step's time.
LEAST_LOSS = 0.1
#: An exchange is told that takes so many times what it took at best, and more by this part of a
#: step's time.
EXCHANGE_FACTOR, EXCHANGE_LOSS = 2.0, 0.25
#: What was told holds until a value is below this part of its limit: a border case is told once.
_RELEASE = 0.85


@dataclass(frozen=True)
class Finding:
    """What is to be told of a gang's pace.

    Attributes:
        task, host: the rank; empty where it is all of them.
        cause: ``input`` or ``compute``; ``network``; ``cpu`` (only its host tells); or ``none``,
            where what was told is over.
        text: for people, in a line.
        factor: own part of a step over the others' (``input``, ``compute``), or the exchange over
            what it was at best (``network``); else None.
        evidence: what the hosts say.
    """

    task: str
    host: str
    cause: str
    text: str
    factor: float | None = None
    evidence: tuple[str, ...] = ()

    @property
    def event(self) -> dict[str, Any]:
        """The same as fields of a JSON object."""
        return {
            "task": self.task or None,
            "host": self.host or None,
            "cause": self.cause,
            "text": self.text,
            "factor": None if self.factor is None else round(self.factor, 2),
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True)
class _Times:
    """Parts of a step's mean time, in ms."""

    input: float
    compute: float
    exchange: float

    @property
    def own(self) -> float:
        return self.input + self.compute

    @property
    def step(self) -> float:
        return self.own + self.exchange


@dataclass(frozen=True)
class _Sample:
    """A progress record: the times of the steps after ``first`` to ``last``, and when (s)."""

    began: float
    ended: float
    first: int
    last: int
    times: _Times


@dataclass
class _Track:
    """What is known of one rank."""

    host: str = ""
    samples: deque[_Sample] = field(default_factory=deque)
    looks: deque[Look] = field(default_factory=deque)
    last: tuple[float, int] | None = None

    def add_record(self, record: Mapping[str, Any], window: float) -> None:
        """Take a progress record; those that are older than the window go."""
        ended, step = number(record.get("t")), record.get("step")
        if record.get("phase") != "training" or ended is None or not isinstance(step, int):
            return
        before, self.last = self.last, (ended, step)
        if before is None:
            return
        if ended < before[0] or step < before[1]:
            self.samples.clear()  # the clock was set back, or the run began again
            return
        times = _times(record.get("step_time"))
        if times is None or step == before[1]:
            return
        self.samples.append(_Sample(before[0], ended, before[1], step, times))
        # For longer than the window: the ranks' records are not of the same moments.
        while len(self.samples) > RECORDS + 1 and self.samples[1].began < ended - 1.5 * window:
            self.samples.popleft()

    def add_look(self, look: Look, window: float) -> None:
        """Take what the host says; what is older than the window goes."""
        if self.looks:
            newest = self.looks[-1]
            again = newest.get("machine") != look.get("machine") or any(
                look.get(name, 0) < newest.get(name, 0) for name in ("t", "cpu_s")
            )
            if again:  # the host, or the rank, has begun again
                self.looks.clear()
        self.looks.append(look)
        while len(self.looks) > 2 and self.looks[1]["t"] <= look["t"] - window:
            self.looks.popleft()


class Stragglers:
    """The ranks of one attempt that train, each compared with the others.

    Args:
        limit: how many times the others' own part of a step is too long.
        window: seconds over which it must have been so.
    """

    def __init__(self, tasks: Iterable[str], limit: float = 1.5, window: float = WINDOW_S) -> None:
        self._tracks = {task: _Track() for task in tasks}
        self._limit, self._window = limit, window
        self._told: Finding | None = None
        self._best: _Times | None = None

    def add(
        self,
        task: str,
        host: str,
        record: Mapping[str, Any] | None,
        facts: Mapping[str, Any] | None,
    ) -> None:
        """Take a progress record of a rank, each once and in order, or what its host reports of it
        (see ``host.load.facts``), or both.
        """
        track = self._tracks.get(task)
        if track is None:
            return
        track.host = host
        if record:
            track.add_record(record, self._window)
        if facts and number(facts.get("t")) is not None:
            track.add_look(facts, self._window)

    def finding(self) -> Finding | None:
        """Return what is to be reported now; None while nothing has changed. A finding is reported
        again when it is of another rank or cause, when the hosts give evidence for the first time,
        and when the factor has doubled. So is its end.
        """
        windows = self._windows()
        if windows:
            found = self._slowest(windows) or self._exchange(windows)
        elif any(track.samples for track in self._tracks.values()):
            return None  # they will tell enough
        else:
            found = self._by_hosts()
        told, self._told = self._told, found
        if found is None:
            return _over(told)
        if told is not None and (told.task, told.cause) == (found.task, found.cause):
            grown = (found.factor or 1.0) / (told.factor or 1.0)
            if grown < 2 and (told.evidence or not found.evidence):
                self._told = told
                return None
        return found

    @property
    def _looks(self) -> dict[str, Looks]:
        return {task: track.looks for task, track in self._tracks.items()}

    def _relief(self, task: str, *causes: str) -> float:
        """Return by what limits are multiplied: less than 1 for what was told already."""
        told = self._told
        return _RELEASE if told and told.task == task and told.cause in causes else 1.0

    def _windows(self) -> list[dict[str, _Times]]:
        """Return the ranks' times over the same steps: all of them, the older and the newer half.

        Nothing while there are too few of them.
        """
        tracks = self._tracks
        if len(tracks) < 2 or not all(track.samples for track in tracks.values()):
            return []
        low = max(track.samples[0].first for track in tracks.values())
        high = min(track.samples[-1].last for track in tracks.values())
        for track in tracks.values():
            of_all = _between(track.samples, low, high)
            if len(of_all) < RECORDS or of_all[-1].ended - of_all[0].began < self._window:
                return []
        half = (low + high) / 2
        return [
            {task: _mean(_between(track.samples, *part)) for task, track in tracks.items()}
            for part in ((low, high), (low, half), (half, high))
        ]

    def _slowest(self, windows: list[dict[str, _Times]]) -> Finding | None:
        """Return the rank whose own part of a step is longest, if it is too long in all windows."""
        means = windows[0]
        task = max(means, key=lambda name: means[name].own)
        relief = self._relief(task, "input", "compute")
        for window in windows:
            slow, usual = window[task], _others(window, task, "own")
            lost = slow.own - usual
            if slow.own < relief * self._limit * usual or lost < relief * LEAST_LOSS * slow.step:
                return None
        slow, usual = means[task], _others(means, task, "own")
        more, factor = slow.own - usual, slow.own / max(usual, 1e-3)
        # A rank that has a bit of both keeps the cause that was told.
        less_input = 0.5 + 0.15 * (
            (self._relief(task, "compute") < 1) - (self._relief(task, "input") < 1)
        )
        more_input = slow.input - _others(means, task, "input")
        cause = "input" if more_input > less_input * more else "compute"
        host, looks = self._tracks[task].host, self._looks
        evidence = hindrances(task, looks)
        unknown = "its host tells no reason" if span(looks[task]) > 0 else "the reason is not known"
        text = (
            f"{task} ({host}) is the slowest rank: its own part of a step takes {factor:.1f} times "
            f"the others' ({slow.own:.3g} ms, {usual:.3g} ms), "
            f"{'waiting for its examples' if cause == 'input' else 'computing'}: "
            f"{'; '.join(evidence) or unknown}"
        )
        return Finding(task, host, cause, text, factor, tuple(evidence))

    def _exchange(self, windows: list[dict[str, _Times]]) -> Finding | None:
        """Return that the exchange itself has become slow: that is no rank's own part.

        How long it takes shows in the rank that waits least for others.
        """
        now, *halves = (
            _Times(
                0.0,
                max(times.own for times in window.values()),
                min(times.exchange for times in window.values()),
            )
            for window in windows
        )
        best = self._best
        if best is None or now.exchange <= best.exchange:
            self._best = now
            return None
        relief = self._relief("", "network")
        for times in (now, *halves):
            more = times.exchange - best.exchange
            if (
                times.exchange < relief * EXCHANGE_FACTOR * best.exchange
                or more < relief * EXCHANGE_LOSS * times.step
                or times.own - best.own > 0.5 * more
            ):
                return None
        factor = now.exchange / max(best.exchange, 1e-3)
        evidence = []
        again = resending(self._looks)
        if again is not None:
            task, share = again
            evidence.append(
                f"the host of {task} ({self._tracks[task].host}) had to send {share:.1%} of its "
                "TCP segments again, by its own link or that of the rank that it sends to"
            )
        text = (
            f"the exchange takes all ranks {factor:.1f} times as long as at best "
            f"({now.exchange:.3g} ms, {best.exchange:.3g} ms), and none computes longer: the "
            "network, or hosts that are busy; the times do not tell whose"
        )
        return Finding("", "", "network", "; ".join([text, *evidence]), factor, tuple(evidence))

    def _by_hosts(self) -> Finding | None:
        """Return the one rank whose processors are held back, where scripts tell no times."""
        looks = self._looks
        if len(looks) < 2 or any(span(seen) < 0.8 * self._window for seen in looks.values()):
            return self._told
        held = {task: found for task in looks if (found := hindrances(task, looks))}
        if len(held) != 1:
            return None
        [(task, evidence)] = held.items()
        host = self._tracks[task].host
        text = (
            f"{task} ({host}) may be the slowest rank: {'; '.join(evidence)}; its script tells no "
            "times of a step, so whether the others wait for it is not known"
        )
        return Finding(task, host, "cpu", text, None, tuple(evidence))


def _between(samples: Iterable[_Sample], low: float, high: float) -> list[_Sample]:
    """Return the samples that tell of steps after ``low`` and up to ``high``."""
    return [sample for sample in samples if sample.last > low and sample.first < high]


def _mean(samples: list[_Sample]) -> _Times:
    """Return the times of a step in the mean of all steps of the samples."""
    steps = [sample.last - sample.first for sample in samples]
    parts = [
        sum(getattr(sample.times, name) * n for sample, n in zip(samples, steps, strict=True))
        for name in ("input", "compute", "exchange")
    ]
    return _Times(*(part / sum(steps) for part in parts))


def _others(times: Mapping[str, _Times], task: str, name: str) -> float:
    """Return the median of a time over the ranks but ``task``."""
    others = [float(getattr(own, name)) for other, own in times.items() if other != task]
    return statistics.median(others)


def _times(told: object) -> _Times | None:
    """Return the times of a record; None where it tells none."""
    if not isinstance(told, Mapping):
        return None
    parts = [number(told.get(f"{name}_ms")) for name in ("input", "compute", "exchange")]
    known = [part for part in parts if part is not None]
    return _Times(*known) if len(known) == len(parts) else None


def _over(told: Finding | None) -> Finding | None:
    """Return that what was told is over."""
    if told is None:
        return None
    if told.cause == "network":
        text = "the exchange is as fast again as it was"
    elif told.cause == "cpu":
        text = f"{told.task} ({told.host}): nothing holds its processors back any more"
    else:
        text = f"{told.task} ({told.host}) keeps up with the others again"
    return Finding(told.task, told.host, "none", text)
