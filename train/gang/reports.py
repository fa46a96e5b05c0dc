"""Checks reports from hosts as they arrive: type, range, length, depth and count.

The control node holds the keys to all hosts, so a compromised host could attack it. Nothing from a
host is used before it has been checked here. Control characters are removed. Malformed reports
raise ReportError.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from train.gang import cause_names
from train.host import (
    end_causes,
    environments,
    frameworks,
    host_facts,
    leases,
    plain_text,
    probe,
    progress_records,
    records,
    usage,
)
from train.host.load import Facts, GpuLoad
from train.host.records import ABSENT

#: Limits for all reports.
MAX_DEPTH = 12
MAX_ITEMS = 10_000
MAX_TEXT = 65_536
MAX_REASON = 2_000
#: Maximum characters of a file in one update.
MAX_CHUNK = 1 << 23
MAX_PATH = 4_096
MAX_RANKS = 4_096
#: GPUs of a host.
MAX_GPUS = 64

Check = Callable[[Any], Any]
#: The files of a rank that are fetched while they grow.
FileName = Literal["log", "progress", "supervisor"]
FILES: tuple[FileName, ...] = ("log", "progress", "supervisor")


class ReportError(ValueError):
    """A host's report is malformed. The message names the field."""


def bounded(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a JSON value with cleaned strings, cut if it is too deep, too long or too large.

    Use it only for values that are shown, or returned to the host that they came from.
    """
    if isinstance(value, str):
        return plain_text.clean(value, MAX_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) <= progress_records.MAX_NUMBER else None  # NaN compares as false
    if depth <= 0:
        return None
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MAX_ITEMS]
        return {plain_text.clean(str(k), MAX_PATH): bounded(v, depth - 1) for k, v in pairs}
    if isinstance(value, (list, tuple)):
        return [bounded(item, depth - 1) for item in value[:MAX_ITEMS]]
    return None


def refuse_unless(right: Callable[[Any], bool], wrong: str) -> Check:
    """Return a check that returns a value unchanged if it is ``right``, else raises ReportError.

    ``wrong`` is the error's message.
    """

    def check(value: Any) -> Any:
        if not right(value):
            raise ReportError(wrong)
        return value

    return check


def matching(pattern: str | re.Pattern[str], wrong: str) -> Check:
    """Return a check for a string that fully matches a pattern. ``wrong`` is its error message."""
    return refuse_unless(lambda v: isinstance(v, str) and bool(re.fullmatch(pattern, v)), wrong)


def text(limit: int = MAX_REASON) -> Check:
    """Return a check that cuts a text to at most ``limit`` characters."""
    check = refuse_unless(lambda value: isinstance(value, str), "is not text")
    return lambda value: plain_text.clean(check(value), limit)


def chunk(limit: int = MAX_CHUNK) -> Check:
    """Return a check for a part of a file, which is left unchanged to preserve its bytes."""
    wrong = f"is not text of at most {limit} characters"
    return refuse_unless(lambda value: isinstance(value, str) and len(value) <= limit, wrong)


def _is_path(value: Any) -> bool:
    is_rooted = isinstance(value, str) and value[:1] in ("/", "~")
    return is_rooted and plain_text.clean(value, MAX_PATH) == value


def program(value: Any) -> str:
    """Check the program in a host's report, which is a path or a plain name, and return it."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        return value
    return str(path(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def real(value: Any) -> float:
    """Check a number, such as a time, size or rate, and return it."""
    if not (_is_number(value) and 0 <= value <= 1e12):
        raise ReportError("is not a number from 0 to 1e+12")
    return float(value)


def integer(low: int = 0, high: int = progress_records.MAX_COUNT) -> Check:
    """Return a check for an integer from ``low`` to ``high``."""
    return refuse_unless(
        lambda value: isinstance(value, int) and _is_number(value) and low <= value <= high,
        f"is not an integer from {low} to {high}",
    )


def one_of(*allowed: str) -> Check:
    """Return a check for one of the allowed words."""
    return refuse_unless(lambda value: value in allowed, f"is not one of {', '.join(allowed)}")


#: A path on a host: absolute, or in the user's home.
path = refuse_unless(_is_path, "is not an absolute path without control characters")
boolean = refuse_unless(lambda value: isinstance(value, bool), "is neither true nor false")
task = matching(records.TASK_PATTERN, "is not a task such as worker-0")
job = matching(records.JOB_PATTERN, "is not a valid job id")


def items(check: Check, most: int = MAX_ITEMS) -> Check:
    """Return a check for a list of at most ``most`` items that each pass ``check``."""

    def each(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise ReportError(f"is not a list of at most {most} items")
        return [check(item) for item in value]

    return each


def mapping(key: Check, check: Check, most: int = MAX_ITEMS) -> Check:
    """Return a check for an object of at most ``most`` fields.

    Its keys must pass the check ``key``, its values ``check``.
    """

    def each(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise ReportError(f"is not an object of at most {most} fields")
        return {key(name): check(item) for name, item in value.items()}

    return each


def fields(
    checks: Mapping[str, Check], others: Collection[str] = (), nullable: Collection[str] = ()
) -> Check:
    """Return a check for an object whose fields pass their ``checks``. Unknown fields are dropped.

    Fields in ``others`` are optional, and dropped if they are null. Fields in ``nullable`` become
    None if they are missing or null. All other fields are required.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ReportError("is not an object")
        found: Any = dict.fromkeys(nullable)
        for name, known in checks.items():
            if value.get(name) is not None:
                try:
                    found[name] = known(value[name])
                except ValueError as error:
                    raise ReportError(f"{name} {error}") from None
            elif name not in others and name not in nullable:
                raise ReportError(f"has no {name}")
        return found

    return check


def _cause(value: Any) -> str:
    """Return a cause. A cause that this version does not know counts as the script's own exit."""
    is_known = isinstance(value, str) and value in cause_names.CAUSES
    return str(value) if is_known else end_causes.EXIT


_PHASE = one_of(ABSENT, *records.ALIVE_PHASES, *records.FINAL_PHASES)
_HOST = text(255)
#: The outcome of a connection.
reached = one_of(probe.OPEN, probe.REFUSED, probe.TIMEOUT, probe.UNRESOLVABLE, probe.UNREACHABLE)
#: The check for values of each type.
_TYPES: dict[Any, Check] = {
    Any: bounded,
    bool: boolean,
    int: integer(),
    float: real,
    str: text(),
    progress_records.Progress: progress_records.check_progress,
}
#: Checks for fields with stricter rules than their type.
_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("lease_dir", "python", "rank_dir", "results_dir", "root"), path),
    **dict.fromkeys(("phase", "was"), _PHASE),
    **dict.fromkeys(("port", "spare_port"), integer(1, 65_535)),
    **dict.fromkeys(("address", "host", "local", "met"), _HOST),
    **dict.fromkeys(("claim", "proxy", "tensorflow", "uuid"), text(100)),
    "lock_sha256": text(64),
    "missing_modules": items(text(200), 1000),
    "package_environments": items(
        matching(environments.PACKAGES_PATTERN, "is not a valid environment name"), 1000
    ),
    "python_series": matching(r"3\.[0-9]{1,2}", "is not a Python version"),
    "framework": one_of("tensorflow", "jax", "none"),
    "variant": one_of("cpu", "gpu", "any"),
    "versions": mapping(one_of(*itertools.chain(*frameworks.PACKAGES.values())), text(100)),
    **dict.fromkeys(("key", "machine", "place"), text(MAX_PATH)),
    "addresses": items(matching(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", "is not an IPv4 address")),
    "attempt": integer(1, 10**6),
    "cause": _cause,
    "exit_code": integer(-1024, 2**32),
    "host_python": program,
    "index": integer(0, 99_999),
    "job": job,
    "mtu": integer(0, 10**6),
    "out": reached,
    "reached": mapping(task, reached, MAX_RANKS),
    "task": task,
    "tasks": mapping(task, _HOST, MAX_RANKS),
    "type": one_of(*records.TASK_TYPES),
}


def _of_type(kind: Any) -> Check:
    """Return the check for values of a type in the records."""
    if kind in _TYPES:
        return _TYPES[kind]
    if is_typeddict(kind):
        return record(kind)
    parts = get_args(kind)
    if get_origin(kind) is list:
        return items(_of_type(parts[0]))
    if get_origin(kind) is dict:
        return mapping(_HOST, _of_type(parts[1]))
    return _of_type(next(part for part in parts if part is not type(None)))


def record(kind: Any, required: Collection[str] | None = None, **checks: Check) -> Check:
    """Return the check for a record, made from its type, _FIELDS and the overriding ``checks``.

    ``required`` replaces the type's own set of required fields.
    """
    types = get_type_hints(kind)
    found = {
        name: checks.get(name) or _FIELDS.get(name) or _of_type(field)
        for name, field in types.items()
    }
    needed = kind.__required_keys__ if required is None else required
    nullable = [name for name in needed if types[name] is Any or NoneType in get_args(types[name])]
    return fields(found, types.keys() - needed, nullable)


#: Fields of a state, in addition to the phase, that the control node uses.
_USED: dict[str, Check] = {
    **{name: _FIELDS[name] for name in ("attempt", "cause", "exit_code", "port")},
    **dict.fromkeys(
        ("alone", "at_risk", "checkpoint_found", "frozen", "stuck_in_framework"), boolean
    ),
    **dict.fromkeys(("ended_at", "running_at", "started_at"), _TYPES[float]),
    **dict.fromkeys(("pid", "step"), integer()),
    "reason": text(),
    "preemption": record(records.Preemption, None, source=text(20)),
    **dict.fromkeys(("at_work", "lingering"), items(text(200), 10)),
    "lingering_s": _TYPES[float],
    "left_files": record(records.LeftFiles, None, names=items(text(200), 10)),
    "left_out": mapping(one_of(*FILES), items(integer(), 2), len(FILES)),
}
_STATE = fields({"phase": _PHASE, **_USED}, _USED)
#: An update of one rank (see ``host.updates``). Text from files keeps its bytes.
update = record(
    records.Update, None, state=_STATE, load=bounded, **dict.fromkeys((*FILES, "last"), chunk())
)
#: The load in an update, as far as it is stored.
load = record(Facts, {"t"}, nice=integer(-20, 19), gpus=items(record(GpuLoad), MAX_GPUS))
#: A rank as ``host.ranks.identify`` returns it.
rank = record(records.RankInfo)
_LISTED = record(records.ListedJob)
#: The report of ``gang_check`` about its host.
facts = record(host_facts.HostFacts)
#: The report of ``environment_info``.
described = fields({"environment": record(host_facts.Environment)}, nullable=("environment",))
#: The report of ``state`` about a rank.
seen = fields(
    {
        "state": _STATE,
        "last_line": text(),
        "progress": progress_records.check_progress,
        "rank": rank,
    },
    nullable=("rank",),
)
_MORE_SEEN = fields({"more": items(seen, MAX_RANKS)}, others=("more",))
_STOP_REPORT = record(records.StopReport)
_STOPPED = fields(
    {"stop_report": _STOP_REPORT, "more": items(_STOP_REPORT, MAX_RANKS)}, others=("more",)
)
#: The report of ``job_remove``.
cleaned = fields({"removed": items(fields({"job": job, "size": integer()})), "kept": items(text())})
#: The report of ``usage`` about its host, without the jobs.
used = fields(
    {
        "compiled_for": text(20),
        "usage": record(usage.Usage, gpus=items(record(usage.GpuUse), MAX_GPUS)),
        "owners": mapping(job, text(100)),
        "holds": items(
            record(
                usage.Held,
                user=text(100),
                state=one_of(leases.STARTED, leases.TAKEN, leases.QUEUED),
                resources=items(text(200), leases.MOST_RESOURCES),
            )
        ),
    }
)
#: A host's report on its connections to other ranks; see ``host.probe.check``.
probed = record(records.Probed)


def listing(value: object) -> tuple[list[records.ListedJob], list[str]]:
    """Return a host's jobs, and errors about malformed ones, which are dropped."""
    jobs: list[records.ListedJob] = []
    wrong = []
    for reported in items(lambda item: item)(value):
        try:
            listed = _LISTED(reported)
        except ReportError as error:
            name = bounded(reported.get("job") if isinstance(reported, Mapping) else reported)
            wrong.append(f"job {name!r:.100} {error}")
            continue
        ranks = listed["ranks"]
        if ranks and all(rank["job"] == listed["job"] for rank in ranks):
            jobs.append(listed)
    return jobs, wrong


def all_seen(value: object) -> list[Any]:
    """Return the reports of ``state`` on all ranks that an inventory host answers for."""
    return [seen(value), *_MORE_SEEN(value).get("more", ())]


def stop_reports(value: object) -> list[Any]:
    """Return the reports of ``stop`` on all ranks that an inventory host answers for."""
    stopped = _STOPPED(value)
    return [stopped["stop_report"], *stopped.get("more", ())]
