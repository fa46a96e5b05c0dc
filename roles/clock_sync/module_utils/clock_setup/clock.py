"""The clock, as chrony tells it: whom it follows, and how far it is off."""

from __future__ import annotations

import subprocess
import time
from typing import Any, Dict, Optional

NOT_SYNCHRONISED = "Not synchronised"
LOCAL_REFERENCE = "7F7F0101"


class WrongClockError(Exception):
    """The clock follows nobody, or is too far off; the message says which."""


def chronyc(*arguments: str) -> str:
    """Return what chronyc prints, errors included."""
    done = subprocess.run(
        ["chronyc", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode(errors="replace").strip()


def read_tracking(tracking: str, sources: str) -> Optional[Dict[str, Any]]:
    """Return what chrony says of the clock; None where it follows nobody.

    Args:
        tracking: of ``chronyc -c tracking``. It tells the correction that the clock still needs.
        sources: of ``chronyc -c sources``. Where chrony may not set the clock, a large offset is in
            the last sample of the source until chrony has given up stepping, and not in tracking.
    """
    fields = tracking.strip().split(",")
    if len(fields) != 14 or fields[13] == NOT_SYNCHRONISED:
        return None
    source = "its own clock" if fields[0] == LOCAL_REFERENCE else fields[1] or fields[0]
    samples = [line.split(",") for line in sources.splitlines()]
    ahead = [float(sample[7]) for sample in samples if len(sample) == 10 and sample[1] == "*"]
    # A clock that is behind needs a positive correction.
    offset = sum(ahead) - float(fields[4])
    return {"source": source, "stratum": int(fields[2]), "offset": offset}


def read_clock(timeout: float) -> Dict[str, Any]:
    """Return what chrony says of the clock, once it follows a source.

    Raises:
        WrongClockError: it follows none within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        said = chronyc("-c", "tracking")
        clock = read_tracking(said, chronyc("-c", "-n", "sources"))
        if clock:
            return clock
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    sources = [line.split(",") for line in chronyc("-c", "-N", "sources", "-a").splitlines()]
    names = sorted({fields[2] for fields in sources if len(fields) > 2})
    raise WrongClockError(
        "the clock of this host follows no source after %g s (%s): name NTP servers that it"
        " reaches (UDP port 123) in clock_sync_servers, or one host of the cluster in"
        " clock_sync_source"
        % (timeout, "no use of " + ", ".join(names) if names else "chrony knows none; " + said)
    )


def judge(clock: Dict[str, Any], max_skew: float, sets_clock: bool) -> None:
    """Raise WrongClockError where the clock is off by more than ``max_skew`` seconds."""
    if abs(clock["offset"]) <= max_skew:
        return
    remedy = "chrony mends this slowly; `chronyc makestep` does it at once, while no job runs"
    if not sets_clock:
        remedy = "this host may not set its clock (no CAP_SYS_TIME): set that of its machine"
    raise WrongClockError(
        "the clock of this host is %.3f s %s its source %s, clock_sync_max_skew allows %g s: %s"
        % (
            abs(clock["offset"]),
            "ahead of" if clock["offset"] > 0 else "behind",
            clock["source"],
            max_skew,
            remedy,
        )
    )
