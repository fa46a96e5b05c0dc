"""Whether another attempt follows one that failed, from the job's folder on the control node.

Standard library only: the wrapper and Ansible's action plugins ask alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.gang.plan.ranks import MANIFEST_FILE
from train.gang.watch import causes
from train.host import records

#: Set by the wrapper, which starts further attempts, for the playbooks that it runs.
ENV_WRAPPER = "TRAIN_WRAPPER"
RESULT_FILE = "result.json"
#: The longest pause before a restart, in seconds.
_LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Decision:
    """What follows an attempt that failed.

    Attributes:
        attempt: the one that failed.
        failure: how.
        why_not: why none follows, for people; empty where one does.
        told: whether that is worth telling: not where nobody asked for restarts.
        delay: seconds until the next one.
    """

    attempt: int
    failure: causes.Failure
    why_not: str
    told: bool
    delay: float


def decide(result: Mapping[str, Any], run_dir: Path) -> Decision | None:
    """Return what follows ``result``, the contents of ``result.json``; None where nobody planned.

    Args:
        run_dir: the job's folder, with its manifest and what earlier attempts left.
    """
    manifest = records.read_json(str(run_dir / MANIFEST_FILE))
    if manifest is None or result["state"] != "failed":
        return None
    policy, attempt = manifest["policy"], int(manifest["attempt"])
    before = _before(run_dir)
    failure, most = causes.failure_of(result), int(policy["max_restarts"])
    earlier, made = causes.failure_of(before) if before else None, records.restarts_made(manifest)
    delay = min(_LONGEST_DELAY, float(policy["restart_delay"]) * 2**made)
    why_not = causes.why_not_again(failure, earlier, made, most)
    return Decision(attempt, failure, why_not, most > 0, delay)


def last_result(run_dir: Path) -> dict[str, Any] | None:
    """Return the ``result.json`` of the last attempt that has ended; None where none has."""
    return records.read_json(str(run_dir / RESULT_FILE)) or _before(run_dir)


def _before(run_dir: Path) -> dict[str, Any] | None:
    """Return the last result that was set aside for another attempt."""
    ended = (run_dir / records.ATTEMPTS_DIR).glob(f"*/{RESULT_FILE}")
    last = max(ended, key=lambda path: int(path.parent.name), default=None)
    return records.read_json(str(last)) if last else None
