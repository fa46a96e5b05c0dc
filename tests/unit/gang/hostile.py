"""What a host reports, and how a hostile one may change it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from train.gang.plan.planned_ranks import keep_checkpoints, plan_ranks

#: Number of examples of each of the four tests that generate cases: 500 in all.
CASES = settings(
    max_examples=int(os.environ.get("HOSTILE_CASES", "125")),
    deadline=None,
    derandomize=True,  # the same examples each time, so failures can be reproduced
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
OSC = "\x1b]52;c;ZXZpbA==\x07"


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_text(errors="replace") if path.is_file() else str(path.is_symlink())
        found[str(path.relative_to(folder))] = (about.st_mode, content)
    return found


def archive_of(path: Path, members: Sequence[tuple[Any, ...]]) -> Path:
    """Write an archive of members: name, type, and content, target of a link or claimed size."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, kind, what in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, what if isinstance(what, str) else ""
            content = what if isinstance(what, bytes) else b""
            info.size = what if isinstance(what, int) else len(content)
            tar.addfile(info, io.BytesIO(content) if content else None)
    return path


FILE, LINK, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE
ENVIRONMENT = {
    **{
        "root": "/home/u/train",
        "framework": "tensorflow",
        "variant": "cpu",
        "python_series": "3.11",
        "lock_sha256": "0",
    },
    "package_environments": ["packages-0123456789ab"],
}
FACTS: Any = {
    **{"machine": "m", "address": "10.0.0.1", "cores": 8, "memory_mb": 9, "port": 12345},
    **{"root": "~/train", "python": "/opt/tf/bin/python", "host_python": "python3"},
    **{"lease_dir": "/tmp/leases", "tensorflow": None, "gpus_wanted": None},
    **{"environment": ENVIRONMENT, "missing_modules": ["pandas"]},
    "gpus": [{"index": 0, "uuid": "GPU-1", "instances": ["MIG-1"]}],
    "gpus_busy": {"GPU-1": {"why": "in use", "remedy": "wait", "waits": True}},
}
RANK = {
    **{"job": "night", "task": "worker-0", "attempt": 1, "port": 12345, "non_training": False},
    **dict.fromkeys(("rank_dir", "results_dir"), "/home/me/train/jobs/night/worker-0"),
    **{"host_python": "/usr/bin/python3", "place": "here"},
}
LISTED: Any = {
    "job": "night",
    "size": 1000,
    "manifest": {
        **{"attempt": 1, "created_at": 1.0, "restarts": 0},
        **{"tasks": {"worker-0": "node-0"}, "hosts": ["node-0"]},
    },
    "ranks": [
        {
            **{**RANK, "host": "node-0", "key": "x:1:2", "phase": "running", "reason": ""},
            **{"started_at": 1.0, "ended_at": None, "idle": 1.0, "processes": 1},
            **{"progress": {"step": 1}, "log_from": 0},
        }
    ],
}
STATE = {"phase": "running", "attempt": 1, "pid": 4711, "port": 12345, "running_at": 1.0}
SEEN = {"rank": RANK, "state": STATE, "last_line": "x", "progress": {"step": 3}}
STOP_REPORT: dict[str, Any] = {
    "was": "running",
    "phase": "stopped",
    "ended": 1,
    "remaining": [],
    "port": 1,
}
STOP_REPORT["given_back"] = 0
UPDATE = {
    "state": {"phase": "failed", "exit_code": 1, "reason": "was killed", "ended_at": 1.0},
    "log": "a line\n",
    "progress": '{"step": 3, "loss": 0.5}\n',
    "supervisor": "",
    "cursor": {"phase": "failed", "frozen": False, "log": 7, "progress": 24, "supervisor": 0},
    "more": False,
    "age": 1.0,
    "now": 1795244560.0,
    "load": {"t": 1.0, "machine": "m", "cpu_s": 1.0, "gpus": [{"index": 0, "mhz": 1}]},
}
INVENTORY = ("node-0", "node-1")
ATTEMPT = {"planned_at": 1.5, "claim": "c0de", "staged": True, "left_out": {}}


def a_manifest(attempt: int = 1, **changed: Any) -> Any:
    hosts: Any = {name: {**FACTS, "machine": name, "address": name} for name in INVENTORY}
    ranks = plan_ranks({"worker": INVENTORY}, hosts)
    keep_checkpoints(ranks, hosts, {}, False)
    tasks = {rank["task"]: rank["host"] for rank in ranks}
    return {
        "version": 1,
        "job": "night",
        "created_at": 1795244560.125,
        "script": "/home/me/main.py",
        "entry": "main.py",
        "arguments": ["--epochs", "5"],
        "code_sha256": "a" * 64,
        "attempt": attempt,
        "attempts": [{**ATTEMPT, "attempt": n + 1, "ranks": tasks} for n in range(attempt)],
        "results_dirs": {rank["host"]: rank["results_dir"] for rank in ranks},
        "ranks": ranks,
        "hosts": {},
        "policy": {"max_restarts": 3, "restart_delay": 1, "min_workers": 0, "host_wait": 60},
        "cluster": {"worker": ["node-0:12345", "node-1:12345"]},
        **changed,
    }
