"""Assembles a job's description from its hosts, for a control node that may have no data about it.

The description identifies the code that ranks run, so a single host must not be able to change it.
It is trusted if it comes from the control node that started the job, or if all hosts agree. Facts
about a host that did not answer come from this control node, or are defaults.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.gang import answers, archives, connections, job_records, reports, run_folders
from train.gang.errors import NothingAnsweredError, UserError
from train.gang.job_records import Attempt, FoundRank, Manifest, PlannedRank, Policy
from train.gang.login_failures import names_of
from train.gang.plan import renaming, script_files, withdrawal
from train.gang.plan.renaming import Inventory
from train.gang.reports import ReportError, fields, items, mapping, matching, record, task, text
from train.host import frameworks, json_files, rank_files, records
from train.host.host_facts import HostFacts
from train.host.records import RankInfo

#: Fields that each attempt rewrites. All others are constant for the whole job. Jobs of older
#: versions have ``tf_config`` instead of ``cluster``.
_OF_ATTEMPT = {"attempt", "attempts", "results_dirs", "hosts", "ranks", "cluster", "versions"}
_OF_ATTEMPT |= {"tf_config"}
#: Fields that jobs of older versions lack.
_OPTIONAL = ("module", "rank_arguments", "framework", "cluster")
_HOST, _RANKS = text(255), reports.MAX_RANKS
#: Arguments are not cleaned, because the script gets them again.
_ARGUMENTS = items(reports.chunk(reports.MAX_TEXT))
_ADDRESS = matching(r"[\w.:%\[\]-]{1,300}:[0-9]{1,5}", "is not an address with a port")
_CLUSTER = mapping(reports.one_of(*records.TASK_TYPES), items(_ADDRESS, _RANKS))
_MANIFEST = fields(
    {
        "job": reports.job,
        "created_at": reports.real,
        "script": text(reports.MAX_PATH),
        "entry": matching(r"[^/\x00-\x1f\x7f-][^/\x00-\x1f\x7f]*", "is not a file name"),
        "module": matching(r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*)?", "is not a module name"),
        "arguments": _ARGUMENTS,
        "rank_arguments": mapping(_HOST, _ARGUMENTS, _RANKS),
        "code_sha256": matching("[0-9a-f]{64}", "is not a SHA-256"),
        "attempt": reports.integer(1, 10**6),
        "attempts": items(record(Attempt, ranks=mapping(task, _HOST, _RANKS))),
        "results_dirs": mapping(_HOST, task, _RANKS),
        "ranks": items(record(PlannedRank, results_dir=task), _RANKS),
        "policy": record(Policy),
        "framework": reports.one_of(*frameworks.FRAMEWORKS),
        "cluster": _CLUSTER,
    },
    others=_OPTIONAL,
)


def check(value: object, job: str, inventory: Inventory) -> Manifest:
    """Return a manifest from a host, with clean texts and the inventory's host names.

    Raise ReportError if it is malformed, is of another job, or has hosts outside the inventory.
    """
    checked: Manifest = _MANIFEST(value)
    if checked["job"] != job:
        raise ReportError(f"belongs to job {checked['job']}")
    ranks = checked["ranks"]
    tasks, hosts = {rank["task"] for rank in ranks}, {rank["host"] for rank in ranks}
    if not ranks or min(len(tasks), len(hosts)) < len(ranks):
        raise ReportError("has no ranks, or several ranks with the same task or host")
    if checked["attempt"] not in [attempt["attempt"] for attempt in checked["attempts"][-1:]]:
        raise ReportError("does not describe its last attempt")
    for rank in ranks:
        if rank["task"] != f"{rank['type']}-{rank['index']}":
            raise ReportError(f"gives {rank['type']} {rank['index']} the name {rank['task']}")
    rest = {name: part for name, part in reports.bounded(value).items() if name not in _OPTIONAL}
    manifest = renaming.in_names_of({**rest, **checked}, inventory)
    for host in (rank["host"] for rank in manifest["ranks"]):
        if host not in inventory.names:
            raise ReportError(f"contains a host that is not in the inventory: {host}")
    return manifest


def choose(
    kept: Mapping[str, object], local: Manifest | None, job: str, inventory: Inventory
) -> tuple[Manifest | None, list[str]]:
    """Return the manifest to trust, and warnings about hosts whose manifests are ignored.

    Choose the newest attempt that this control node has written, or that two hosts or all hosts of
    the attempt report identically. If there is no such attempt, choose the newest one. If this
    control node has planned the chosen attempt, return its local manifest.

    Args:
        kept: each inventory host's manifest, unchecked.
        local: this control node's manifest, with the inventory's host names. Without it, UserError
            is raised if the hosts disagree on the job's constant fields.
    """
    manifests: dict[str, Manifest] = {}
    warnings = []
    for host, value in kept.items():
        try:
            manifests[host] = check(value, job, inventory)
        except ReportError as error:
            warnings.append(f"ignoring the record of job {job} on {host}: its job.json {error}")
    constant = {host: _constant(manifest) for host, manifest in manifests.items()}
    if local is not None:
        for host in [host for host in manifests if constant[host] != _constant(local)]:
            del manifests[host]
            warnings.append(
                f"ignoring the record of job {job} on {host}: it is another job with the same id"
            )
    elif len({repr(sorted(part.items())) for part in constant.values()}) > 1:
        raise UserError(
            f"the hosts have different records of job {job} ({', '.join(manifests)}): attach "
            "from the control node that started it, or compare job.json in its folder on "
            "each host"
        )
    candidates = [*manifests.values(), *filter(None, [local])]
    sure = [m for m in candidates if m is local or _is_confirmed(m, manifests)]
    chosen = max(sure or candidates, key=lambda m: m["attempt"], default=None)
    if local is None or chosen is None or _claim(chosen) != _claim(local):
        return chosen, warnings
    was_staged = any(_claim(manifest) == _claim(local) for manifest in manifests.values())
    return (job_records.staged(local) if was_staged else local), warnings


def _is_confirmed(manifest: Manifest, found: Mapping[str, Manifest]) -> bool:
    members = {rank["host"] for rank in manifest["ranks"]}
    about = (manifest["attempt"], manifest["ranks"])
    alike = [host for host, m in found.items() if (m["attempt"], m["ranks"]) == about]
    return len(alike) > 1 or members <= set(alike)


def _constant(manifest: Manifest) -> dict[str, object]:
    """Return the fields that all attempts of a job share."""
    return {
        name: reports.bounded(value) for name, value in manifest.items() if name not in _OF_ATTEMPT
    }


def _claim(manifest: Manifest) -> tuple[int, str]:
    """Return the number of a manifest's attempt, and the id of the plan for it."""
    return manifest["attempt"], manifest["attempts"][-1]["claim"]


def find(play: connections.Play, args: connections.Args) -> dict[str, object]:
    """Return ``attempt``, ``run_dir``, ``hosts`` (chief first) and ``found_ranks`` of a job.

    Raise UserError, OSError or ValueError if the job is unknown or some of its hosts are not in
    this play, NothingAnsweredError if none of its hosts can be reached.
    """
    job = str(args["job"])
    if not job:
        raise UserError("no job given: set train_job_id (-e train_job_id=JOB)")
    run_folders.check_id(job)
    names = [host for hosts in args["groups"].values() for host in hosts]
    states = {name: play.registered(name, args["registered"]) for name in names}
    reported = {name: _ranks_in(state) for name, state in states.items()}
    inventory = renaming.inventory_of(play, names, reported)
    run_dir = Path(args["run_dir"]).expanduser()
    written = job_records.read_manifest(run_dir)
    own = renaming.in_names_of(written, inventory) if written else None
    kept = {name: state["manifest"] for name, state in states.items() if state.get("manifest")}
    newest, warnings = choose(kept, own, job, inventory)
    unreachable = {name for name, state in states.items() if state.get("unreachable")}
    broken = {name: state for name, state in states.items() if state.get("failed")}
    reasons = answers.reasons(broken)
    warnings += reasons.splitlines()
    members = {rank["host"] for rank in newest["ranks"]} if newest else set(names)
    unanswered = unreachable | broken.keys()
    if unanswered and (members <= unanswered or unanswered == set(names)):
        if broken:
            raise UserError(reasons)
        raise NothingAnsweredError("no host of the job answered")
    if newest is None or members - set(names):
        problem = f"no host has job {job} in {args['root']}"
        if newest is not None:
            unknown = names_of(sorted(members - set(names)))
            problem = f"job {job} runs on hosts that are not in this inventory: {unknown}"
        named = names_of(sorted(unanswered)) if unanswered else "none"
        remedy = "use the inventory that the job was started with"
        refusal = f"{problem} (hosts that did not answer: {named}): {remedy}"
        raise UserError("\n".join(filter(None, [refusal, reasons])))
    absent = [rank["host"] for rank in newest["ranks"] if rank["host"] not in play.hosts]
    if absent and play.limited:
        raise UserError(
            f"{', '.join(absent)} of job {job} are not in this play: run the playbook "
            "without --limit"
        )
    facts = own["hosts"] if own else {}
    ranks = [
        _rank(newest, rank, states.get(rank["host"], {}), facts, args["root"])
        for rank in newest["ranks"]
    ]
    if newest is not written:
        run_folders.create(run_dir, exist_ok=True)
        if args["readable_by"] == "all":
            run_folders.open_to_all(run_dir)
        if written is not None and written["attempt"] < newest["attempt"]:
            withdrawal.set_aside(run_dir, written["attempt"])
        json_files.write_json(str(run_dir / job_records.MANIFEST_FILE), newest)
    # Only participating hosts: a replaced host may be back and still have the job's files.
    folders = {
        rank["host"]: str(Path(rank["rank_dir"]).parent) for rank in ranks if rank["host"] in kept
    }
    archive = run_dir / rank_files.ARCHIVE_FILE
    if folders and not archive.exists():
        limit = int(float(args["code_limit_mb"]) * 2**20)
        warnings += fetch_archive(play, folders, archive, newest["code_sha256"], limit)
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    found = {"job": job, "attempt": newest["attempt"], "run_dir": str(run_dir), "hosts": hosts}
    return {**found, "found_ranks": ranks, "warnings": warnings}


def _ranks_in(state: Mapping[str, Any]) -> list[Any]:
    """Return the ranks that a host returned from the call ``state``; None for a missing rank."""
    return [state.get("rank"), *(seen.get("rank") for seen in state.get("more") or ())]


def _rank(
    manifest: Manifest,
    planned: PlannedRank,
    state: Mapping[str, Any],
    facts: Mapping[str, HostFacts],
    root: str,
) -> FoundRank:
    """Return a rank in the form that ``stage`` returns, from the ``state`` of its host.

    If the host did not report the rank, use ``facts`` of this control node about the host, or
    defaults. Reports of other hosts do not count.
    """
    about = (manifest["job"], manifest["attempt"], planned["task"])
    reported: list[RankInfo] = [reports.rank(report) for report in _ranks_in(state) if report]
    for rank in reported:
        if (rank["job"], rank["attempt"], rank["task"]) == about:
            return {**rank, "host": planned["host"], "start_error": ""}
    host_facts: Any = facts.get(planned["host"], {"root": root, "host_python": "python3"})
    job_dir = f"{host_facts['root']}/jobs/{manifest['job']}"
    error = "the control node stopped before it started the rank"
    return {
        "host": planned["host"],
        "job": manifest["job"],
        "task": planned["task"],
        "attempt": manifest["attempt"],
        "rank_dir": f"{job_dir}/{planned['task']}",
        "results_dir": f"{job_dir}/{planned['results_dir']}",
        "port": planned["port"],
        "non_training": planned["non_training"],
        "host_python": host_facts["host_python"],
        "place": f"{planned['host']} alone",
        "start_error": "" if state.get("unreachable") else error,
    }


def fetch_archive(
    play: connections.Play, folders: dict[str, str], archive: Path, sha256: str, limit: int
) -> list[str]:
    """Fetch the code archive from the job's folder on the first host that has it unchanged.

    Its files may have at most ``limit`` bytes in total. Only another attempt needs the archive, so
    an error does not end the watch. If no host has it, return warnings with the reason for each
    host.

    Args:
        folders: the job's folder by host.
    """
    warnings = []
    for host, folder in folders.items():
        try:
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=archive.parent) as fresh:
                fetched = Path(fresh, archive.name)
                play.fetch(host, f"{folder}/{archive.name}", fetched, limit)
                if archives.digest(fetched, script_files.LARGEST) != sha256:
                    raise archives.ArchiveError(
                        "the archive differs from the code that the job was started with"
                    )
                fetched.replace(archive)
            return []
        except (archives.ArchiveError, *connections.FETCH_ERRORS) as error:
            reason = reports.bounded(str(error) or type(error).__name__)
            warnings.append(f"{archive.name} was not fetched from {host}: {reason}")
    return [
        *warnings,
        f"without {archive.name}, the job cannot be restarted from here: if the archive is too "
        "large, raise train_job_code_limit_mb, and attach again",
    ]
