"""Brings the logs of a job's ranks home, as they are or as they grow, and judges nothing.

What comes in is written to ``logs/<task>.log`` and ``progress/<task>.jsonl`` in a folder of the
control node. Standard library only: it runs inside Ansible's action plugin ``gang_call``.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.gang import reports
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.follow import LOCK_FILE, WAIT, BusyError, Look, fetched_files
from train.gang.watch.views import Target
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
    log_limit: int,
) -> Heard:
    """Bring logs and progress records of ``targets`` into ``folder``.

    Args:
        look: asks a machine for updates.
        log_from: where to begin in the log of each task, in bytes.
        follow: whether to go on until every rank has ended; else what is there now is enough.
        start_timeout: seconds for which a rank that has no state yet is waited for.
        unreachable_timeout: seconds that a host may not answer.
        interval: seconds that a host gathers lines before it answers.
        log_limit: the most bytes that are kept of each file.

    Raises:
        BusyError: another process writes to the folder.
        OSError: the folder cannot be written.
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
        files = {t.task: fetched_files(folder, t.task, log_limit) for t in targets}
        for file in (file for own in files.values() for file in own.values()):
            file.path.parent.mkdir(exist_ok=True)
            file.clear()
        heard = Heard()
        places: dict[str, list[Target]] = {}
        for target in targets:
            places.setdefault(target.place, []).append(target)
        threads = [
            threading.Thread(
                target=_hear,
                args=(heard, members, files, look, log_from, follow),
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


def _hear(
    heard: Heard,
    targets: Sequence[Target],
    files: Mapping[str, Mapping[str, FetchedFile]],
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
            **dict.fromkeys(reports.FILES, 0),
            "log": log_from.get(target.task, 0),
        }
        for target in targets
    }
    began = answered = time.monotonic()
    gather = 0.0  # what is there already comes at once
    while waiting:
        asked = {rank_dir: cursors[rank_dir] for rank_dir in waiting}
        try:
            told = look(targets[0], asked, WAIT if follow else 0.0, gather)
            found = {rank_dir: reports.update(told.get(rank_dir)) for rank_dir in waiting}
            for rank_dir, update in found.items():
                if _is_other(update, waiting[rank_dir]):
                    continue
                for name, file in files[waiting[rank_dir].task].items():
                    if update[name]:
                        data = update[name].encode("utf-8", "surrogateescape")
                        file.append(data, update["cursor"][name])
                        cursors[rank_dir][name] = update["cursor"][name]
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
        for rank_dir, update in found.items():
            target = waiting[rank_dir]
            if _is_other(update, target):
                heard.phases[target.task] = records.FAILED  # the gang was started again meanwhile
                del waiting[rank_dir]
                continue
            cursors[rank_dir] = update["cursor"]
            phase = str(update["state"]["phase"])
            heard.phases[target.task] = phase
            late = phase == host_ranks.ABSENT and answered - began > start_timeout
            over = not follow or late or phase in records.FINAL_PHASES
            if over and not update["more"]:
                del waiting[rank_dir]


def _is_other(update: Mapping[str, Any], target: Target) -> bool:
    """Tell whether an update is of another attempt than the one that is followed."""
    return bool(update["state"].get("attempt", target.attempt) != target.attempt)
