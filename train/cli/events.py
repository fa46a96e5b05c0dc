"""What is told of a job while it is followed, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something new about a job.

    Attributes:
        kind: ``task`` (Ansible is at another task), ``rank`` (an update of a rank), ``restart``
            (the attempt failed, and another one follows), ``straggler`` (a rank that keeps the
            others waiting) or ``notice`` (about the watch itself, such as a host that cannot be
            reached).
        job: the job's id.
        task: the rank, such as ``worker-0``; for ``kind == "task"`` the name of Ansible's task;
            for a restart the rank that was at fault, or nothing.
        data: for a rank the line of ``events.jsonl``, for a restart ``attempt`` (the number of the
            next one), ``delay`` in seconds, ``cause`` and ``message``, for a straggler and a notice
            the object in ``events.jsonl``, see docs/formats.md; else empty.
    """

    kind: str
    job: str
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        state: ``completed``, ``failed``, ``stopped``; ``refused`` where nothing was started because
            of wrong input or a host that is not ready; ``unreachable`` where nothing was started
            because a host does not answer; ``left`` where the user left the job running;
            ``unwatched`` where the watch ended by itself, and the job was left as it is.
        message: for people.
        metrics: the chief's last metrics, such as ``test_accuracy``.
        ranks: see ``result.json`` in docs/formats.md.
        run_dir: the job's folder on the control node.
        attempts: how often the gang was started; 0 where that is not known.
    """

    job: str
    state: str
    message: str
    metrics: Mapping[str, float]
    ranks: Sequence[Mapping[str, Any]]
    run_dir: Path
    attempts: int = 0
