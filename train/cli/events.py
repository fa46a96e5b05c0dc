"""What is reported of jobs: events while one is followed, how it ended, lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.gang.records import RankResult

#: Variables of Ansible, whose values are any that JSON has.
Variables = Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """Something new about a job.

    Attributes:
        kind: ``task`` (Ansible is at another task), ``rank`` (an update of a rank), ``restart``
            (the attempt failed, and another one follows), ``straggler`` (a rank that keeps the
            others waiting) or ``notice`` (about the watch itself, such as an unreachable host).
        job: the job's id.
        task: the rank, such as ``worker-0``; for ``kind == "task"`` the name of Ansible's task;
            for a restart the rank that failed first, or nothing.
        data: the fields of ``--json`` in docs/formats.md, but for those above.
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
            because of an unreachable host; ``left`` where the user left the job running;
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
    metrics: Mapping[str, float | str]
    ranks: Sequence[RankResult]
    run_dir: Path
    attempts: int = 0
