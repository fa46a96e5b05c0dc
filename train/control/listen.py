"""Brings the logs of a job's ranks home, as they are or as they grow, and judges nothing.

What comes in is written to ``logs/<task>.log`` and ``progress/<task>.jsonl`` in a folder of the
control node. Standard library only: it runs inside Ansible's action plugin ``gang_watch``.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.control.views import Target
from train.control.watch import LOCK_FILE, WAIT, BusyError, Look
from train.host import ranks as host_ranks
from train.host import records

_BACKOFF = 1.0


@dataclass
class Heard:
    """What came of listening.

    Attributes:
        phases: the last phase of each rank.
        lost: why a rank could not be heard to its end, in words.
    """

    phases: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def listen(
    targets: Sequence[Target],
    folder: Path,
    look: Look,
    *,
    log_from: Mapping[str, int],
    follow: bool,
    start_timeout: float,
    unreachable_timeout: float,
    interval: float,
) -> Heard:
    """Bring logs and progress records of ``targets`` into ``folder``.

    Args:
        look: asks a machine for news.
        log_from: where to begin in the log of each task, in bytes.
        follow: whether to go on until every rank has ended; else what is there now is enough.
        start_timeout: seconds for which a rank that has no state yet is waited for.
        unreachable_timeout: seconds that a host may not answer.
        interval: seconds that a host gathers lines before it answers.

    Raises:
        BusyError: another process writes to the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process follows a job into {folder}: give another folder "
                "(train_job_logs_dir)"
            ) from None
        for target in targets:
            for path in _paths(folder, target).values():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"")
        heard = Heard()
        places: dict[str, list[Target]] = {}
        for target in targets:
            places.setdefault(target.place, []).append(target)
        threads = [
            threading.Thread(
                target=_hear,
                args=(heard, members, folder, look, log_from, follow),
                kwargs={
                    "start_timeout": start_timeout,
                    "unreachable_timeout": unreachable_timeout,
                    "interval": interval,
                },
                daemon=True,
            )
            for members in places.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return heard


def _paths(folder: Path, target: Target) -> dict[str, Path]:
    return {
        "log": folder / "logs" / f"{target.task}.log",
        "progress": folder / "progress" / f"{target.task}.jsonl",
    }


def _hear(
    heard: Heard,
    targets: Sequence[Target],
    folder: Path,
    look: Look,
    log_from: Mapping[str, int],
    follow: bool,
    *,
    start_timeout: float,
    unreachable_timeout: float,
    interval: float,
) -> None:
    """Hear the ranks of one machine."""
    waiting = {target.rank_dir: target for target in targets}
    cursors: dict[str, Any] = {
        target.rank_dir: {
            "phase": "",
            "frozen": False,
            "log": log_from.get(target.task, 0),
            "progress": 0,
        }
        for target in targets
    }
    began = answered = time.monotonic()
    gather = 0.0  # what is there already comes at once
    while waiting:
        asked = {rank_dir: cursors[rank_dir] for rank_dir in waiting}
        try:
            told = look(targets[0], asked, WAIT if follow else 0.0, gather)
        except Exception as error:  # whatever it is: the other machines are heard on
            if not follow or time.monotonic() - answered > unreachable_timeout:
                reason = str(error) or type(error).__name__
                for target in waiting.values():
                    where = f"{target.task} on {target.host}"
                    heard.lost[target.task] = f"{where} does not answer: {reason}"
                return
            time.sleep(_BACKOFF)
            continue
        answered = time.monotonic()
        gather = interval
        for rank_dir, news in told.items():
            target = waiting[rank_dir]
            if news["state"].get("attempt", target.attempt) != target.attempt:
                heard.phases[target.task] = records.FAILED  # the gang was started again meanwhile
                del waiting[rank_dir]
                continue
            cursors[rank_dir] = news["cursor"]
            for name, path in _paths(folder, target).items():
                if news[name]:
                    with path.open("ab") as stream:
                        stream.write(news[name].encode("utf-8", "surrogateescape"))
            phase = str(news["state"]["phase"])
            heard.phases[target.task] = phase
            late = phase == host_ranks.ABSENT and answered - began > start_timeout
            over = not follow or late or phase in records.FINAL_PHASES
            if over and not news["more"]:
                del waiting[rank_dir]
