"""Finds the slowest rank of a running job, and the reason if possible.

In synchronous training a step takes the same time on all ranks, because fast ranks wait for slow
ones in the exchange of gradients. Therefore the *own* parts of a rank's steps are compared: the
wait for its examples and the computation (``step_time`` in progress records), over steps that all
ranks have reported. The *readings* of a rank are reports of ``host.load.facts`` over some seconds,
oldest first. They show why its processors are slow. If a script reports no times, only readings
are available.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from train.host.progress_records import Progress

Reading = Mapping[str, Any]
Readings = Sequence[Reading]

#: NVML's bits for a clock that heat or the power supply has reduced, and for one that the power
#: limit has reduced.
_GPU_HELD, _GPU_POWER = 0x8 | 0x20 | 0x40 | 0x80, 0x4

#: Minimum duration, in seconds, and number of records of each rank for a judgement.
WINDOW_S = 20.0
RECORDS = 3
#: Minimum time that a step loses due to the slowest rank for a report, as a fraction of the step.
LEAST_LOSS = 0.1
#: An exchange is slow if it takes this many times its best time, and longer than its best time by
#: this fraction of a step.
EXCHANGE_FACTOR, EXCHANGE_LOSS = 2.0, 0.25
#: A rank whose threads want less than this fraction of a core is idle: its core may have slowed
#: down because of that, and its waits for a core are too short to matter.
_IDLE = 0.1
#: A reported problem persists until a value is below this fraction of its limit, to avoid repeated
#: reports.
_RELEASE = 0.85


@dataclass(frozen=True)
class PaceFinding:
    """A change in the pace of a job that is reported."""

    task: str | None  # the rank, or None for all ranks
    host: str | None  # its inventory host, or None
    #: ``input`` or ``compute``; ``network``; ``cpu`` (known only from readings); or ``none`` if the
    #: reported slowness is over.
    cause: str
    text: str  # a line for users
    #: Own part of a step relative to the others' (``input``, ``compute``), or the exchange relative
    #: to its best time (``network``); else None.
    factor: float | None = None
    evidence: Sequence[str] = field(default_factory=list)


class _Times(NamedTuple):
    """Mean times of the parts of a step, in ms."""

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
    """Mean times of the steps after ``first`` up to ``last``, from one progress record."""

    began: float
    ended: float
    first: int
    last: int
    times: _Times


class Stragglers:
    """The training ranks of one attempt, each compared with the others.

    Args:
        hosts: the host of each task.
        limit: maximum ratio of a rank's own part of a step to that of the others.
        window: minimum seconds for which the limit must be exceeded.
    """

    def __init__(
        self, hosts: Mapping[str, str], limit: float = 1.5, window: float = WINDOW_S
    ) -> None:
        self._hosts = hosts
        self._samples: dict[str, deque[_Sample]] = {task: deque() for task in hosts}
        self._last: dict[str, tuple[float, int]] = {}  # time and step of the newest record
        self._phases: dict[str, str | None] = {}  # of the newest record that has one
        self._readings: dict[str, deque[Reading]] = {task: deque() for task in hosts}
        self._limit, self._window = limit, window
        self._reported: PaceFinding | None = None
        self._best: _Times | None = None

    def add_record(self, task: str, record: Progress) -> None:
        """Add a rank's progress record. Records must be added once and in order."""
        samples, before = self._samples[task], self._last.get(task)
        ended, step = number(record.get("t")), record.get("step")
        self._phases[task] = phase = record.get("phase", self._phases.get(task))
        if phase != "training" or ended is None or step is None:
            return
        self._last[task] = (ended, step)
        if before is None:
            return
        if ended < before[0] or step < before[1]:
            samples.clear()  # the clock was set back, or the run started again
            return
        times = _times(record.get("step_time", {}))
        if times is None or step == before[1]:
            return
        samples.append(_Sample(before[0], ended, before[1], step, times))
        # Longer than the window, because the ranks' records are not synchronized.
        oldest = ended - 1.5 * self._window
        while len(samples) > RECORDS + 1 and samples[1].began < oldest:
            samples.popleft()

    def add_reading(self, task: str, reading: Reading) -> None:
        """Add a reading from a rank's host; see ``host.load.facts``."""
        readings = self._readings[task]
        if number(reading.get("t")) is None:
            return
        if readings:
            newest = readings[-1]
            again = newest.get("machine") != reading.get("machine") or any(
                reading.get(name, 0) < newest.get(name, 0) for name in ("t", "cpu_s")
            )
            if again:  # the host or the rank has started again
                readings.clear()
        readings.append(reading)
        while len(readings) > 2 and readings[1]["t"] <= reading["t"] - self._window:
            readings.popleft()

    def finding(self) -> PaceFinding | None:
        """Return a new finding, or None if nothing has changed.

        A finding is repeated if the rank or the cause changes, if hosts provide evidence for the
        first time, or if the factor doubles. Its end is also reported.
        """
        windows = self._windows()
        if windows:
            found = self._slowest(windows) or self._exchange(windows)
        elif any(self._samples.values()):
            return None  # more records will follow
        else:
            found = self._by_hosts()
        before, self._reported = self._reported, found
        if found is None:
            return _over(before)
        if before is not None and (before.task, before.cause) == (found.task, found.cause):
            grown = (found.factor or 1.0) / (before.factor or 1.0)
            if grown < 2 and (before.evidence or not found.evidence):
                self._reported = before
                return None
        return found

    def _relief(self, task: str | None, *causes: str) -> float:
        """Return the factor for limits: less than 1 for a finding that was already reported."""
        known = self._reported
        return _RELEASE if known and known.task == task and known.cause in causes else 1.0

    def _windows(self) -> list[dict[str, _Times]]:
        """Return each rank's times over the steps that all ranks have reported, and over each half.

        Return an empty list if the steps are too few.
        """
        ranks = self._samples.values()
        if len(ranks) < 2 or not all(ranks):
            return []
        low = max(samples[0].first for samples in ranks)
        high = min(samples[-1].last for samples in ranks)
        for samples in ranks:
            of_all = _between(samples, low, high)
            if len(of_all) < RECORDS or of_all[-1].ended - of_all[0].began < self._window:
                return []
        half = (low + high) / 2
        return [
            {task: _mean(_between(samples, *part)) for task, samples in self._samples.items()}
            for part in ((low, high), (low, half), (half, high))
        ]

    def _slowest(self, windows: list[dict[str, _Times]]) -> PaceFinding | None:
        """Return a finding about the slowest rank if its own part is too long in all windows."""
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
        # A rank with a mixture of both keeps the reported cause.
        less_input = 0.5 + 0.15 * (
            (self._relief(task, "compute") < 1) - (self._relief(task, "input") < 1)
        )
        more_input = slow.input - _others(means, task, "input")
        cause = "input" if more_input > less_input * more else "compute"
        compared = _Compared(self._readings)
        host, known = self._hosts[task], bool(compared.grown[task])
        evidence = list(compared.hindrances(task))
        unknown = "its host reports no reason" if known else "the reason is unknown"
        text = (
            f"{task} ({host}) is the slowest rank: its own part of a step takes {factor:.1f} "
            f"times as long as the others' ({slow.own:.3g} ms, others {usual:.3g} ms), and the "
            f"extra time is spent {'waiting for examples' if cause == 'input' else 'computing'}: "
            f"{'; '.join(evidence) or unknown}"
        )
        return PaceFinding(task, host, cause, text, round(factor, 2), evidence)

    def _exchange(self, windows: list[dict[str, _Times]]) -> PaceFinding | None:
        """Return a finding if the exchange is slow even for the rank that waits the least in it."""
        worst = [
            _Times(
                0.0,
                max(times.own for times in window.values()),
                min(times.exchange for times in window.values()),
            )
            for window in windows
        ]
        now, best = worst[0], self._best
        if best is None or now.exchange <= best.exchange:
            self._best = now
            return None
        relief = self._relief(None, "network")
        for times in worst:
            more = times.exchange - best.exchange
            if (
                times.exchange < relief * EXCHANGE_FACTOR * best.exchange
                or more < relief * EXCHANGE_LOSS * times.step
                or times.own - best.own > 0.5 * more
            ):
                return None
        factor = now.exchange / max(best.exchange, 1e-3)
        evidence = [
            f"the host of {task} ({self._hosts[task]}) retransmitted {share:.1%} of its TCP "
            "segments, because its own link, or that of the host it sends to, loses packets"
            for task, share in _resending(self._readings)
        ]
        text = (
            f"the exchange of gradients takes all ranks {factor:.1f} times as long as at its "
            f"fastest ({now.exchange:.3g} ms, fastest {best.exchange:.3g} ms), although no rank "
            "computes longer: the network is slow, or hosts are busy (the times do not show "
            "which)"
        )
        text = "; ".join([text, *evidence])
        return PaceFinding(None, None, "network", text, round(factor, 2), evidence)

    def _by_hosts(self) -> PaceFinding | None:
        """Return a finding from the readings alone, if exactly one rank has slow processors."""
        readings = self._readings
        if len(readings) < 2 or any(span(seen) < 0.8 * self._window for seen in readings.values()):
            return self._reported
        compared = _Compared(readings)
        held = {task: found for task in readings if (found := [*compared.hindrances(task)])}
        if len(held) != 1:
            return None
        [(task, evidence)] = held.items()
        host = self._hosts[task]
        text = (
            f"{task} ({host}) may be the slowest rank: {'; '.join(evidence)}; its script "
            "does not report step times, so it is unknown whether the others wait for it"
        )
        return PaceFinding(task, host, "cpu", text, None, evidence)


def _between(samples: Iterable[_Sample], low: float, high: float) -> list[_Sample]:
    """Return the samples that contain steps after ``low`` and up to ``high``."""
    return [sample for sample in samples if sample.last > low and sample.first < high]


def _mean(samples: list[_Sample]) -> _Times:
    """Return the mean times of a step over all steps of the samples."""
    steps = [sample.last - sample.first for sample in samples]
    parts = zip(*(sample.times for sample in samples), strict=True)
    return _Times(*(statistics.fmean(part, steps) for part in parts))


def _others(times: Mapping[str, _Times], task: str, name: str) -> float:
    """Return the median of the time ``name`` over all ranks except ``task``."""
    others = [float(getattr(own, name)) for other, own in times.items() if other != task]
    return statistics.median(others)


def _times(value: Mapping[str, object]) -> _Times | None:
    """Return the times of a record, or None if one is missing."""
    parts = [number(value.get(f"{name}_ms")) for name in _Times._fields]
    known = [part for part in parts if part is not None]
    return _Times(*known) if len(known) == len(parts) else None


def _over(found: PaceFinding | None) -> PaceFinding | None:
    """Return a finding that the slowness of ``found`` is over, or None if ``found`` is None."""
    if found is None:
        return None
    if found.cause == "network":
        text = "the exchange of gradients is back to its former speed"
    elif found.cause == "cpu":
        text = f"{found.task} ({found.host}): its processors are no longer slowed down"
    else:
        text = f"{found.task} ({found.host}) keeps up with the others again"
    return PaceFinding(found.task, found.host, "none", text)


def number(value: object) -> float | None:
    """Return a JSON value if it is a number. In records, NaN and infinities are strings."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def span(readings: Readings) -> float:
    """Return the seconds from the first reading to the last."""
    return float(readings[-1]["t"] - readings[0]["t"]) if readings else 0.0


def rates(readings: Readings) -> dict[str, float]:
    """Return the growth of each counter per second; empty if unknown."""
    seconds = span(readings)
    if seconds <= 0:
        return {}
    found = {}
    for name, value in readings[-1].items():
        first, last = number(readings[0].get(name)), number(value)
        if first is not None and last is not None:
            found[name] = max(0.0, last - first) / seconds
    return found


class _Pooled:
    """Values of all ranks, for the median of all others than one of them.

    With hundreds of ranks, sorting the others' values for each rank would take long.
    """

    def __init__(self, values: Mapping[str, Sequence[float]]) -> None:
        self._own = {task: sorted(own) for task, own in values.items()}
        self._all = sorted(itertools.chain.from_iterable(values.values()))

    def median_of_others(self, task: str) -> float | None:
        """Return the median of all values except those of a rank, or None if there are none."""
        own = self._own.get(task, [])
        count = len(self._all) - len(own)
        if not count:
            return None
        return (self._other((count - 1) // 2, own) + self._other(count // 2, own)) / 2

    def _other(self, place: int, own: Sequence[float]) -> float:
        """Return the value at ``place`` in the sorted values without the sorted ``own`` ones."""
        for number, value in enumerate(own):
            # The place of this value, after its equals that come before it in ``own``.
            before = number - bisect.bisect_left(own, value)
            if bisect.bisect_left(self._all, value) + before <= place:
                place += 1
        return self._all[place]


class _Compared:
    """Readings of all ranks, which are compared with each other.

    Attributes:
        grown: the ``rates`` of each rank.
    """

    def __init__(self, ranks: Mapping[str, Readings]) -> None:
        self._ranks = ranks
        self.grown = {task: rates(readings) for task, readings in ranks.items()}
        self._clocks = {task: _values(readings, "mhz") for task, readings in ranks.items()}
        shares = {task: _waiting_share(grown) for task, grown in self.grown.items()}
        self._shares = {task: share for task, share in shares.items() if share is not None}
        gpus = {task: _newest_gpus(readings) for task, readings in ranks.items()}
        self._all_clocks = _Pooled(self._clocks)
        self._all_shares = _Pooled({task: [share] for task, share in self._shares.items()})
        self._all_gpus = _Pooled({task: [gpu["mhz"] for gpu in own] for task, own in gpus.items()})

    def hindrances(self, task: str) -> Iterator[str]:
        """Yield the reasons why a rank's processors are slow, as texts that follow ``TASK:``."""
        readings, grown = self._ranks[task], self.grown[task]
        if not grown:
            return
        newest = readings[-1]
        times = sum(bool(reading.get("stopped")) for reading in readings)
        if times >= max(2, 0.2 * len(readings)):
            yield f"it was stopped by a signal in {times} of {len(readings)} samples"
        periods, throttled = grown.get("periods", 0.0), grown.get("throttled", 0.0)
        if periods and throttled >= 0.05 * periods:
            yield (
                f"the CPU limit of its control group ({newest.get('quota_cores', 0):g} cores) "
                f"was used up in {throttled / periods:.0%} of the time slices"
            )
        if grown.get("thermal"):
            events = grown["thermal"] * span(readings)
            yield f"its processors were thermally throttled {events:.0f} times"
        if not self._is_idle(task):
            yield from self._slow_clock(task)
        cores, stolen = newest.get("all_cores"), grown.get("steal_s", 0.0)
        if cores and stolen >= 0.05 * cores:
            yield f"the hypervisor gave {stolen:.1f} of its {cores} cores to other machines"
        if not self._is_idle(task):
            yield from self._starved(task)
        yield from self._held_gpus(task)

    def _is_idle(self, task: str) -> bool:
        wanted = _wanted(self.grown[task])
        return wanted is not None and wanted < _IDLE

    def _slow_clock(self, task: str) -> Iterator[str]:
        own, theirs = self._clocks[task], self._all_clocks.median_of_others(task)
        if own and theirs is not None and statistics.median(own) < 0.75 * theirs:
            yield (
                f"its cores run at {statistics.median(own):.0f} MHz, the others' at {theirs:.0f}"
            )

    def _starved(self, task: str) -> Iterator[str]:
        """Yield a text if a rank's threads wait for a core longer than those of other ranks."""
        share, theirs = self._shares.get(task, 0.0), self._all_shares.median_of_others(task)
        if share < 0.15 or (theirs is not None and share < 2 * theirs):
            return
        newest = {name: readings[-1] for name, readings in self._ranks.items() if readings}
        reading = newest.pop(task)
        text = f"its threads spent {share:.0%} of their runnable time waiting for a core"
        machine = reading.get("machine")
        here = [name for name, last in newest.items() if last.get("machine") == machine]
        of_ranks = sum(self.grown[name].get("cpu_s", 0.0) for name in [task, *here])
        foreign = self.grown[task].get("busy_s", 0.0) - of_ranks
        if foreign >= 0.3:
            text += (
                f", while other processes used {foreign:.1f} of {reading.get('all_cores')} cores"
            )
        nice = reading.get("nice", 0)
        if nice > max((last.get("nice", 0) for last in newest.values()), default=0):
            text += f", at nice {nice}"
        yield text

    def _held_gpus(self, task: str) -> Iterator[str]:
        usual = self._all_gpus.median_of_others(task) or 0.0
        for gpu in _newest_gpus(self._ranks[task]):
            held, slower = gpu["reasons"] & _GPU_HELD, gpu["mhz"] < 0.8 * usual
            if held or (slower and gpu["reasons"] & _GPU_POWER):
                why = "heat or its power supply" if held else "its power limit"
                compared = f", others {usual:.0f}" if slower else ""
                yield (
                    f"the clock of GPU {gpu['index']} is throttled by {why}: {gpu['mhz']} MHz "
                    f"of {gpu['max_mhz']}{compared}"
                )


def _waiting_share(grown: Mapping[str, float]) -> float | None:
    """Return how much of its runnable time a rank has waited for a core, or None if unknown."""
    wanted = _wanted(grown)
    return grown["wait_s"] / wanted if wanted else None


def _wanted(grown: Mapping[str, float]) -> float | None:
    """Return the cores that a rank used or waited for, or None if unknown."""
    known = {"cpu_s", "wait_s"} <= grown.keys()
    return grown["cpu_s"] + grown["wait_s"] if known else None


def _values(readings: Readings, name: str) -> list[float]:
    """Return the values of a field in readings, without those that are missing or zero."""
    return [reading[name] for reading in readings if reading.get(name)]


def _newest_gpus(readings: Readings) -> Sequence[Reading]:
    return next((reading["gpus"] for reading in reversed(readings) if reading.get("gpus")), [])


def _resending(ranks: Mapping[str, Readings]) -> Iterator[tuple[str, float]]:
    """Yield the rank whose host retransmits the largest share of TCP segments, if it stands out.

    Also yield the share.
    """
    shares = {}
    for task, readings in ranks.items():
        grown = rates(readings)
        if grown.get("tcp_sent") and "tcp_resent" in grown:
            shares[task] = grown["tcp_resent"] / grown["tcp_sent"]
    if shares:
        most = max(shares, key=lambda task: shares[task])
        usual = statistics.median([0.0, *(shares[task] for task in shares if task != most)])
        if shares[most] >= max(0.005, 3 * usual):
            yield most, shares[most]
