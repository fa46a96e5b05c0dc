"""Ranks in a state that is made up."""

from __future__ import annotations

from typing import Any

from train.gang.watch.causes import Failure
from train.gang.watch.views import Target, View
from train.host import end_causes


def view(task: str, *tail: str, **state: Any) -> View:
    target = Target(f"host-of-{task}", task, f"/jobs/x/{task}", "/usr/bin/python3", task, False)
    known: Any = {"phase": "running", **state}
    made = View(target, state=known)
    made.add_log("".join(f"{line}\n" for line in tail))
    return made


def fallen(task: str, *tail: str, **state: Any) -> View:
    known = {
        "phase": "failed",
        "exit_code": 1,
        "cause": end_causes.EXIT,
        "reason": "exited with code 1",
    }
    return view(task, *tail, **{**known, **state})


def ended(cause: str, code: int | None = None, reason: str = "", step: int | None = 40) -> Failure:
    return Failure(cause, "worker-1", code, reason, step)
