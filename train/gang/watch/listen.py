"""Fetches the logs of a job's ranks, as they are or as they grow, and judges nothing.

What comes in is written to ``logs/<task>.log`` and ``progress/<task>.jsonl`` in a folder of the
control node.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from train.gang import reports
from train.gang.watch import follow as watch
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.views import WAIT, Target
from train.host import ranks as host_ranks
from train.host import records
from train.host.records import Cursor, Update

_BACKOFF = 1.0


#: The last ``phases`` of the ranks, and why some are ``lost``: not heard to their end, in words.
Heard = dict[str, dict[str, str]]


def listen(
    targets: Sequence[Target],
    folder: Path,
    poll: watch.Poll,
    limits: watch.Limits,
    *,
    log_from: Mapping[str, int],
    follow: bool,
) -> Heard:
    """Fetch logs and progress records of ``targets`` into ``folder``.

    Args:
        log_from: where to begin in the log of each task, in bytes.
        follow: whether to continue until every rank has ended; else what is there now is enough.

    Raises:
        BusyError: another process writes to the folder.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = watch.lock(
        folder,
        f"another process follows a job into {folder}: give another folder (train_job_logs_dir)",
    )
    try:
        files = {t.task: watch.fetched_files(folder, t.task, limits.log_limit) for t in targets}
        for file in (file for own in files.values() for file in own.values()):
            file.path.parent.mkdir(exist_ok=True)
            file.clear()
        heard: Heard = {"phases": {}, "lost": {}}
        threads = [
            threading.Thread(
                target=_hear,
                args=(heard, members, files, poll, limits, log_from, follow),
                daemon=True,
            )
            for members in watch.by_place(targets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(lock)
    return heard


def _hear(
    heard: Heard,
    targets: Sequence[Target],
    files: Mapping[str, Mapping[reports.FileName, FetchedFile]],
    poll: watch.Poll,
    limits: watch.Limits,
    log_from: Mapping[str, int],
    follow: bool,
) -> None:
    """Fetch those of one machine."""
    ranks = {target.rank_dir: target for target in targets}
    cursors = {t.rank_dir: watch.start_at(log=log_from.get(t.task, 0)) for t in targets}
    began = answered = time.monotonic()
    wait, over = WAIT if follow else 0.0, threading.Event()
    for answer in watch.answers(
        targets[0], cursors, poll, wait, limits.interval, over, longest_backoff=_BACKOFF
    ):
        try:
            if isinstance(answer, Exception):
                raise answer
            for rank_dir, update in answer.items():
                if ranks[rank_dir].is_of_attempt(update["state"]):
                    _save(update, files[ranks[rank_dir].task], cursors[rank_dir])
        except Exception as error:
            if not follow or time.monotonic() - answered > limits.unreachable_timeout:
                reason = str(error) or type(error).__name__
                for target in (ranks[rank_dir] for rank_dir in cursors):
                    where = f"{target.task} on {target.host}"
                    heard["lost"][target.task] = f"{where} is unreachable: {reason}"
                return
            if error is not answer:
                time.sleep(_BACKOFF)
            continue
        answered = time.monotonic()
        for rank_dir, update in answer.items():
            target, phase = ranks[rank_dir], update["state"]["phase"]
            another = not target.is_of_attempt(update["state"])  # started again meanwhile
            heard["phases"][target.task] = records.FAILED if another else phase
            cursors[rank_dir] = update["cursor"]
            late = phase == host_ranks.ABSENT and answered - began > limits.start_timeout
            ended = not follow or late or phase in records.FINAL_PHASES
            if another or (ended and not update["more"]):
                del cursors[rank_dir]


def _save(update: Update, files: Mapping[reports.FileName, FetchedFile], cursor: Cursor) -> None:
    for name, file in files.items():
        if update[name]:
            data = update[name].encode("utf-8", "surrogateescape")
            file.append(data, update["cursor"][name])
            cursor[name] = update["cursor"][name]
