"""Notices on a host that it will soon be reclaimed, for example because it is a spot instance.

A notice comes from a cloud's metadata server (metadata.py), from the file ``preempt`` in the rank's
folder, or from SIGUSR1 to the supervisor.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Optional

from . import plain_text, processes, rank_files, ranks, records, tail

#: Sources of notices, in addition to those of metadata.py.
FILE, SIGNAL = "file", "signal"
#: Seconds of a notice that are not used to save, because the host may be reclaimed early.
_MARGIN_S = 3.0
#: Minimum seconds for a script to save.
_LEAST_S = 1.0
#: Maximum seconds, and maximum share of a notice, that a supervisor waits for the control node.
_PATIENCE_S, _PATIENCE = 10.0, 1 / 3
#: Seconds after the end of a notice from which on a host that is still up can be used again. A
#: restart waits longer for a host (train_job_restart_host_timeout).
_VALID_S = 15.0
#: Seconds of a notice whose length is unknown.
_USUAL_S = 30.0
#: Maximum length of a notice in seconds, and of the file.
_LONGEST_S = 86_400
_MAX_FILE = 32


def notice(source: str, seconds: Optional[float] = None) -> records.Preemption:
    """Return the record of a notice that came now, with its length in seconds if it is known."""
    made: records.Preemption = {"source": source, "at": round(time.time(), 3)}
    if seconds is not None:
        made["seconds"] = round(max(0.0, seconds), 3)
    return made


def from_file(rank_dir: str) -> Optional[records.Preemption]:
    """Return the notice that the file ``preempt`` gives, or None.

    The file is empty, or contains the length of the notice in seconds.
    """
    path = os.path.join(rank_dir, rank_files.PREEMPT_FILE)
    if not os.path.lexists(path):
        return None
    text = ""
    with contextlib.suppress(OSError):  # the existence of the file is the notice
        with open(tail.open_file(path), "rb") as stream:
            text = stream.read(_MAX_FILE).decode("ascii", "replace").strip()
    is_length = plain_text.is_number(text) and int(text) <= _LONGEST_S
    return notice(FILE, float(text) if is_length else None)


def seconds_left(noticed: records.Preemption, now: float) -> Optional[float]:
    """Return the seconds that ranks have to save; None if the length of the notice is unknown.

    Args:
        now: the time of the host's clock.
    """
    seconds = noticed.get("seconds")
    if seconds is None:
        return None
    return max(_LEAST_S, seconds - max(0.0, now - noticed["at"]) - _MARGIN_S)


def patience(noticed: records.Preemption) -> float:
    """Return the seconds after which a supervisor ends its rank without the control node."""
    return min(_PATIENCE_S, _PATIENCE * noticed.get("seconds", _USUAL_S))


def of_job(root: str, job: str) -> Optional[records.Preemption]:
    """Return a notice that this host got during an attempt of the job and that still applies.

    It no longer applies once the host was rebooted, or if the host is still up _VALID_S seconds
    after the end of the notice.
    """
    job_dir = os.path.join(glob.escape(os.path.join(root, "jobs", job)), "*")
    state = rank_files.STATE_FILE
    earlier = os.path.join(job_dir, rank_files.ATTEMPTS_DIR, "*", state)
    boot, init = processes.boot_id(), processes.init_start()
    for path in [*glob.glob(os.path.join(job_dir, state)), *glob.glob(earlier)]:
        found = ranks.noted(os.path.dirname(path))
        noticed = found.get("preemption")
        if not noticed or (found.get("boot_id"), found.get("init_start")) != (boot, init):
            continue
        age = time.time() - noticed["at"]
        if 0 <= age < noticed.get("seconds", _USUAL_S) + _VALID_S:
            return noticed
    return None
