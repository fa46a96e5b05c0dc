"""Hosts that are made up, and what they report of their ranks."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from train.gang.errors import UnreachableError
from train.gang.job_records import EVENTS_FILE
from train.gang.watch.follow import FollowedGang
from train.gang.watch.views import Target

Update = dict[str, Any]
Told = Sequence[Update | Exception]
Make = Callable[..., FollowedGang]


class Hosts:
    """Answers the calls of a gang from a list of states for each task; the last state stays."""

    def __init__(self, **states: Told) -> None:
        self.states = {task.replace("_", "-"): iter(told) for task, told in states.items()}
        self.last: dict[str, Update | Exception] = {}
        self.files: dict[Any, str] = defaultdict(str)

    def poll(
        self, asked: Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> dict[str, Any]:
        time.sleep(0.01)
        fresh = next(self.states[asked.task], None)
        told = fresh or self.last[asked.task]
        self.last[asked.task] = told
        if isinstance(told, (threading.Event, threading.Barrier)):  # the host freezes
            told.wait(30)
            raise GONE
        if isinstance(told, Exception):
            raise told
        ((rank_dir, cursor),) = cursors.items()
        files, cursor = {}, {**cursor, "phase": told["phase"]}
        for name in ("log", "progress"):
            place = asked.task, told.get("attempt"), name
            self.files[place] += told.get(name, "") if fresh else ""
            files[name] = self.files[place][cursor[name] :]
            cursor[name] = len(self.files[place])
        update = {
            **files,
            "state": {k: v for k, v in told.items() if k not in files},
            "supervisor": "",
            "cursor": cursor,
            "more": False,
            "age": 0.0,
            "now": time.time(),
            "load": told.get("load", {}),
        }
        return {rank_dir: update}

    def complete(self, seconds: float, *tasks: str) -> None:
        for task in tasks:
            again = {task: iter([done()])}
            threading.Timer(seconds, lambda again=again: self.states.update(again)).start()


def done(text: str = "", sha: str = "") -> Update:
    said = record("done", weights_sha256=sha, metrics={"test_accuracy": 0.9})
    return {"phase": "completed", "exit_code": 0, "log": text, "progress": said}


def record(phase: str, **fields: Any) -> str:
    return json.dumps({"phase": phase, **fields}) + "\n"


def events(watched: FollowedGang) -> list[dict[str, Any]]:
    return list(map(json.loads, (watched.run_dir / EVENTS_FILE).read_text().splitlines()))


def notices_of(watched: FollowedGang) -> list[dict[str, Any]]:
    return [event["notice"] for event in events(watched) if "notice" in event]


def failed(reason: str = "exited", log: str = "", **state: Any) -> Update:
    return {"phase": "failed", "exit_code": 1, "reason": reason, "log": log, **state}


RUNNING: Update = {"phase": "running", "running_at": 1.0}
STEPPING: Update = {**RUNNING, "progress": record("training", step=7)}
CHIEF: Update = {**RUNNING, "progress": record("training", step=1)}
GONE = UnreachableError("gone")
LINES = "first line\nsecond line\n"
