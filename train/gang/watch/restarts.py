"""Whether another attempt follows one that failed, from the job's folder on the control node.

It is decided once, where the result is written; what supervises obeys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from train.gang.records import RESULT_FILE as RESULT_FILE
from train.gang.records import Result, read_manifest, read_result
from train.gang.watch import causes
from train.host import records

#: The longest pause before a restart, in seconds.
_LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Decision:
    """What follows an attempt; part of ``result.json``, see docs/formats.md."""

    restart: bool
    restart_reason: str
    restarts_left: int
    restart_delay: float


def decide(result: Result, run_dir: Path, supervised: bool) -> Decision:
    """Return what follows ``result``, the contents of ``result.json``; it is ``supervised`` where
    somebody starts further attempts.
    """
    manifest = read_manifest(run_dir)
    if manifest is None or result["state"] != "failed":
        return Decision(False, "", 0, 0.0)
    policy, made = manifest["policy"], records.restarts_made(manifest)
    most = int(policy["max_restarts"])
    left = max(0, most - made)
    before = _before(run_dir)
    earlier = causes.failure_of(before) if before else None
    why_not = causes.why_not_again(causes.failure_of(result), earlier, made, most)
    if why_not or not supervised:
        return Decision(False, why_not if most else "", left, 0.0)
    return Decision(True, "", left, min(_LONGEST_DELAY, float(policy["restart_delay"]) * 2**made))


def last_result(run_dir: Path) -> Result | None:
    """Return the ``result.json`` of the last attempt that has ended; None where none has."""
    return read_result(run_dir) or _before(run_dir)


def _before(run_dir: Path) -> Result | None:
    """Return the last result that was set aside for another attempt."""
    ended = (run_dir / records.ATTEMPTS_DIR).glob(f"*/{RESULT_FILE}")
    last = max(ended, key=lambda path: int(path.parent.name), default=None)
    return read_result(last.parent) if last else None
