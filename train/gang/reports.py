"""What hosts report, checked where it comes in: type, range, length, depth and count.

The control node holds the keys to all hosts, so a host may lie: nothing that it sends is used
before it has gone through here. Control characters are removed on the way. What is malformed raises
ReportError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from train.gang.watch import causes
from train.host import ends, records
from train.host import ranks as host_ranks
from train.host.records import HostFacts, ListedJob, Update

#: Limits of any report.
MAX_DEPTH = 12
MAX_ITEMS = 10_000
MAX_TEXT = 65_536
MAX_REASON = 2_000
#: Characters of a file that come with one update; a host reads at most a fourth of it at once.
MAX_CHUNK = 1 << 20
MAX_PATH = 4_096
MAX_RANKS = 4_096

Check = Callable[[Any], Any]
#: The files of a rank that are fetched as they grow.
FileName = Literal["log", "progress", "supervisor"]
FILES: tuple[FileName, ...] = ("log", "progress", "supervisor")


class ReportError(ValueError):
    """A host reported something malformed; the message names the field."""


def bounded(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return any JSON value with clean texts, cut where it is too deep, too long or too large.

    For what is only shown or handed back to the host that it came from.
    """
    if isinstance(value, str):
        return records.clean(value, MAX_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) <= records.MAX_NUMBER else None  # NaN compares as false
    if depth <= 0:
        return None
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MAX_ITEMS]
        return {records.clean(str(k), MAX_PATH): bounded(v, depth - 1) for k, v in pairs}
    if isinstance(value, (list, tuple)):
        return [bounded(item, depth - 1) for item in value[:MAX_ITEMS]]
    return None


def refuse_unless(right: Callable[[Any], bool], wrong: str) -> Check:
    """Return a check that hands a value on as it is, or says what is ``wrong``."""

    def check(value: Any) -> Any:
        if not right(value):
            raise ReportError(wrong)
        return value

    return check


def matching(pattern: str | re.Pattern[str], wrong: str) -> Check:
    """Return a check for a text that is as a whole of a pattern."""
    return refuse_unless(lambda v: isinstance(v, str) and bool(re.fullmatch(pattern, v)), wrong)


def text(limit: int = MAX_REASON) -> Check:
    """Return a check for a text of at most ``limit`` characters; a longer one is cut."""
    check = refuse_unless(lambda value: isinstance(value, str), "is no text")
    return lambda value: records.clean(check(value), limit)


def chunk(limit: int = MAX_CHUNK) -> Check:
    """Return a check for a part of a file: it stays as it is, whatever bytes it stands for."""
    wrong = f"is no text of at most {limit} characters"
    return refuse_unless(lambda value: isinstance(value, str) and len(value) <= limit, wrong)


def path(value: Any) -> str:
    """Return a path of a host: an absolute one, or one in the user's home."""
    if not isinstance(value, str) or value[:1] not in ("/", "~") or len(value) > MAX_PATH:
        raise ReportError("is no absolute path")
    if records.clean(value, MAX_PATH) != value:
        raise ReportError("holds control characters")
    return value


def program(value: Any) -> str:
    """Return a program of a host: a path, or a plain name."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        return value
    return path(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def real(low: float = -records.MAX_NUMBER, high: float = records.MAX_NUMBER) -> Check:
    """Return a check for a number within limits."""
    wrong = f"is no number from {low:g} to {high:g}"
    check = refuse_unless(lambda value: _is_number(value) and low <= value <= high, wrong)
    return lambda value: float(check(value))


def integer(low: int = 0, high: int = records.MAX_COUNT) -> Check:
    """Return a check for an integer within limits."""

    def right(value: Any) -> bool:
        return isinstance(value, int) and _is_number(value) and low <= value <= high

    return refuse_unless(right, f"is no integer from {low} to {high}")


def one_of(*allowed: str) -> Check:
    """Return a check for one of some words."""
    wrong = f"is none of {', '.join(allowed)}"
    return refuse_unless(lambda value: isinstance(value, str) and value in allowed, wrong)


boolean = refuse_unless(lambda value: isinstance(value, bool), "is neither true nor false")
task = matching(records.TASK_PATTERN, "is no task such as worker-0")
job = matching(records.JOB_PATTERN, "is no job id")


def items(check: Check, most: int = MAX_ITEMS) -> Check:
    """Return a check for a list."""

    def each(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise ReportError(f"is no list of at most {most}")
        return [check(item) for item in value]

    return each


def mapping(key: Check, check: Check, most: int = MAX_ITEMS) -> Check:
    """Return a check for an object with keys of one kind."""

    def each(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise ReportError(f"is no object of at most {most}")
        return {key(name): check(item) for name, item in value.items()}

    return each


def fields(
    required: Mapping[str, Check],
    others: Mapping[str, Check] | None = None,
    nullable: Mapping[str, Check] | None = None,
) -> Check:
    """Return a check for an object with certain fields; unknown ones are left out.

    Args:
        required: fields that must be there.
        others: fields that may be missing, or null, and are then left out.
        nullable: fields that may be missing, and are then null.
    """
    checks = {**required, **(others or {}), **(nullable or {})}

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ReportError("is no object")
        found: Any = dict.fromkeys(nullable or {})
        for name, known in checks.items():
            if value.get(name) is None:
                if name in required:
                    raise ReportError(f"has no {name}")
                continue
            try:
                found[name] = known(value[name])
            except ValueError as error:
                raise ReportError(f"{name} {error}") from None
        return found

    return check


def _cause(value: Any) -> str:
    """Return a cause; one that is not known here (another version's) is a script's own end."""
    return value if isinstance(value, str) and value in causes.CAUSES else ends.EXIT


_PHASE = one_of(host_ranks.ABSENT, *records.ALIVE_PHASES, *records.FINAL_PHASES)
_TIME = real(0, 1e12)
_PORT = integer(1, 65_535)
_ATTEMPT = integer(1, 10**6)
_STATE = fields(
    {"phase": _PHASE},
    {
        "attempt": _ATTEMPT,
        "cause": _cause,
        "ended_at": _TIME,
        "exit_code": integer(-1024, 2**32),
        "frozen": boolean,
        "pid": integer(),
        "port": _PORT,
        "reason": text(),
        "running_at": _TIME,
        "started_at": _TIME,
        "step": integer(),
        "stuck_in_framework": boolean,
    },
)
_CURSOR = fields({"phase": _PHASE, "frozen": boolean, **dict.fromkeys(FILES, integer())})
_UPDATE = fields(
    {
        **dict.fromkeys(FILES, chunk()),
        "state": _STATE,
        "cursor": _CURSOR,
        "more": boolean,
        "now": _TIME,
    },
    {"load": bounded},
    {"age": _TIME},
)
_RANK: dict[str, Check] = {
    "job": job,
    "task": task,
    "attempt": _ATTEMPT,
    "rank_dir": path,
    "results_dir": path,
    "non_training": boolean,
    "host_python": program,
    "place": text(MAX_PATH),
}
#: A rank as ``host.ranks.identify`` returns it.
rank = fields(_RANK, nullable={"port": _PORT})
_LISTED_RANK = fields(
    {
        **_RANK,
        "key": text(MAX_PATH + 100),
        "phase": _PHASE,
        "reason": text(),
        "idle": _TIME,
        "processes": integer(0, 10**7),
        "progress": records.check_progress,
        "log_from": integer(),
    },
    nullable={"port": _PORT, "host": text(255), "started_at": _TIME, "ended_at": _TIME},
)
_LISTED_MANIFEST = fields(
    {
        "attempt": _ATTEMPT,
        "created_at": _TIME,
        "tasks": mapping(task, text(255), MAX_RANKS),
        "hosts": items(text(255), MAX_RANKS),
        "restarts": integer(0, 10**6),
    }
)
_LISTED = fields(
    {"job": job, "ranks": items(_LISTED_RANK, MAX_RANKS)},
    nullable={"size": integer(), "manifest": _LISTED_MANIFEST},
)
_GPU = fields({"index": integer(0, 1000), "uuid": text(100), "instances": items(text(100), 100)})
_BUSY = fields({"why": text(), "remedy": text(), "waits": boolean})
_FACTS = fields(
    {
        "address": text(255),
        "machine": text(MAX_PATH),
        "root": path,
        "python": path,
        "host_python": program,
        "lease_dir": path,
        "gpus": items(_GPU, 100),
        "gpus_busy": mapping(text(100), _BUSY, 1000),
    },
    nullable={"port": _PORT, "tensorflow": text(100)},
)
seen = fields(
    {"state": _STATE, "last_line": text(), "progress": records.check_progress},
    nullable={"rank": rank},
)
_STOPPED = fields(
    {
        "was": _PHASE,
        "phase": _PHASE,
        "ended": integer(0, 10**7),
        "remaining": items(integer(), 10**5),
    },
    nullable={"port": _PORT, "port_free": boolean, "gpu_memory_free": boolean},
)
#: What ``remove_jobs`` reports.
cleaned = fields({"removed": items(fields({"job": job, "size": integer()})), "kept": items(text())})
_REACHED = one_of("open", "refused", "timeout", "unresolvable", "unreachable")
#: What a host found of the paths to other ranks, see ``host.probe.look``.
probed = fields(
    {
        "reached": mapping(task, _REACHED, MAX_RANKS),
        "listening": boolean,
        "own": boolean,
        "addresses": items(text(100), 1_000),
        "proxy": text(100),
    }
)


def update(value: object) -> Update:
    """Return an update of one rank (see ``host.updates``); text of files keeps its bytes."""
    checked: Update = _UPDATE(value)
    checked.setdefault("load", {})
    return checked


def listing(value: object) -> tuple[list[ListedJob], list[str]]:
    """Return the jobs of a host, and what is wrong with others, which are left out."""
    found: list[ListedJob] = []
    wrong = []
    for one in items(lambda item: item)(value):
        try:
            listed = _LISTED(one)
        except ReportError as error:
            name = bounded(one.get("job") if isinstance(one, Mapping) else one)
            wrong.append(f"job {name!r:.100} {error}")
            continue
        ranks = listed["ranks"]
        if ranks and all(rank["job"] == listed["job"] for rank in ranks):
            found.append(listed)
    return found, wrong


def facts(value: object) -> HostFacts:
    """Return what ``check_host`` reports of its host."""
    checked: HostFacts = _FACTS(value)
    return {**bounded(value), **checked}


def stop_report(value: object) -> Any:
    """Return what ``stop`` reports of the end of a rank."""
    return fields({"stop_report": _STOPPED})(value)["stop_report"]
