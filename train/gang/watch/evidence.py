"""What the hosts say that holds back the processors of one rank more than those of the others.

The *looks* of a rank are what ``host.load.facts`` said of it, the oldest first, over some seconds.
All here are pure functions of them. Standard library only.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Look = Mapping[str, Any]
Looks = Sequence[Look]

#: NVML's bits of a clock that is held down by heat or by the power supply, and by the power limit.
_GPU_HELD, _GPU_POWER = 0x8 | 0x20 | 0x40 | 0x80, 0x4


def number(value: object) -> float | None:
    """Return a value of JSON if it is a number; NaN and infinities come as strings."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def span(looks: Looks) -> float:
    """Return the seconds from the first look to the last."""
    return float(looks[-1]["t"] - looks[0]["t"]) if looks else 0.0


def hindrances(task: str, ranks: Mapping[str, Looks]) -> list[str]:
    """Return what holds back the processors of a rank, in words that go after "task:"."""
    looks = ranks[task]
    if span(looks) <= 0:
        return []
    others = [seen for name, seen in ranks.items() if name != task and span(seen) > 0]
    return [
        *_stopped(looks),
        *_limited(looks),
        *_clocked(looks, others),
        *_stolen(looks),
        *_starved(looks, others, _foreign(task, ranks)),
        *_gpus(looks, others),
    ]


def resending(ranks: Mapping[str, Looks]) -> tuple[str, float] | None:
    """Return the rank whose host sends most again by TCP, and that part of it, if it stands out."""
    shares = {}
    for task, looks in ranks.items():
        sent, again = _rate(looks, "tcp_sent"), _rate(looks, "tcp_resent")
        if sent and again is not None:
            shares[task] = again / sent
    if not shares:
        return None
    task = max(shares, key=lambda name: shares[name])
    usual = statistics.median([0.0, *(share for name, share in shares.items() if name != task)])
    return (task, shares[task]) if shares[task] >= max(0.005, 3 * usual) else None


def _grown(looks: Looks, name: str) -> float | None:
    """Return by how much a counter has grown; None where it is not told."""
    first, last = (number(look.get(name)) for look in (looks[0], looks[-1]))
    return None if first is None or last is None else max(0.0, last - first)


def _rate(looks: Looks, name: str) -> float | None:
    """Return by how much a counter grew in a second; None where it is not told."""
    if span(looks) <= 0:
        return None
    grown = _grown(looks, name)
    return None if grown is None else grown / span(looks)


def _stopped(looks: Looks) -> list[str]:
    times = sum(bool(look.get("stopped")) for look in looks)
    if times < 2 or times < 0.2 * len(looks):
        return []
    return [f"it was stopped by a signal at {times} of {len(looks)} looks"]


def _limited(looks: Looks) -> list[str]:
    periods, throttled = _grown(looks, "periods"), _grown(looks, "throttled")
    if not periods or throttled is None or throttled < 0.05 * periods:
        return []
    return [
        f"the CPU limit of its control group ({looks[-1].get('quota_cores', 0):g} cores) was used "
        f"up in {throttled / periods:.0%} of the time slices"
    ]


def _clocked(looks: Looks, others: Sequence[Looks]) -> list[str]:
    found = []
    events = _grown(looks, "thermal")
    if events:
        found.append(f"its processors slowed down for heat {events:.0f} times")
    own = [look["mhz"] for look in looks if look.get("mhz")]
    theirs = [look["mhz"] for other in others for look in other if look.get("mhz")]
    if own and theirs and statistics.median(own) < 0.75 * statistics.median(theirs):
        found.append(
            f"its cores run at {statistics.median(own):.0f} MHz, the others' at "
            f"{statistics.median(theirs):.0f}"
        )
    return found


def _stolen(looks: Looks) -> list[str]:
    cores, stolen = looks[-1].get("all_cores"), _rate(looks, "steal_s")
    if not cores or stolen is None or stolen < 0.05 * cores:
        return []
    return [f"the hypervisor gave {stolen:.1f} of its {cores} cores to others"]


def _waiting(looks: Looks) -> float | None:
    """Return the part of the time for which the rank's threads wanted a core and had none."""
    had, waited = _grown(looks, "cpu_s"), _grown(looks, "wait_s")
    if had is None or waited is None or had + waited <= 0:
        return None
    return waited / (had + waited)


def _starved(looks: Looks, others: Sequence[Looks], foreign: float | None) -> list[str]:
    share = _waiting(looks)
    usual = [value for value in map(_waiting, others) if value is not None]
    if share is None or share < 0.15 or (usual and share < 2 * statistics.median(usual)):
        return []
    text = f"its threads waited for a core {share:.0%} of the time that they wanted one"
    if foreign is not None and foreign >= 0.3:
        cores = looks[-1].get("all_cores")
        text += f", while processes of no rank used {foreign:.1f} of {cores} cores"
    nice = looks[-1].get("nice", 0)
    if nice > max((other[-1].get("nice", 0) for other in others), default=0):
        text += f", at nice {nice}"
    return [text]


def _foreign(task: str, ranks: Mapping[str, Looks]) -> float | None:
    """Return how many cores of the rank's machine processes of no rank used."""
    busy, machine = _rate(ranks[task], "busy_s"), ranks[task][-1].get("machine")
    if busy is None:
        return None
    beside = [looks for looks in ranks.values() if looks and looks[-1].get("machine") == machine]
    return max(0.0, busy - sum(_rate(looks, "cpu_s") or 0.0 for looks in beside))


def _gpus(looks: Looks, others: Sequence[Looks]) -> list[str]:
    theirs = [gpu["mhz"] for other in others for gpu in _newest_gpus(other)]
    usual = statistics.median(theirs) if theirs else 0.0
    found = []
    for gpu in _newest_gpus(looks):
        held, slower = gpu["reasons"] & _GPU_HELD, gpu["mhz"] < 0.8 * usual
        if not (held or (slower and gpu["reasons"] & _GPU_POWER)):
            continue
        why = "heat or its power supply" if held else "its power limit"
        compared = f", the others' {usual:.0f}" if slower else ""
        found.append(
            f"the clock of GPU {gpu['index']} is held down by {why}: {gpu['mhz']} MHz of "
            f"{gpu['max_mhz']}{compared}"
        )
    return found


def _newest_gpus(looks: Looks) -> Sequence[Look]:
    return next((look["gpus"] for look in reversed(looks) if look.get("gpus")), [])
