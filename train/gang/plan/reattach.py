"""Puts together what the hosts keep of a job, for a control node that may know nothing of it.

What is not known of a host that did not answer is in what the others keep of the job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.gang import archives, connections, reports
from train.gang.plan import manifest as manifests
from train.gang.plan import ranks as plan
from train.gang.plan import staging
from train.host import records


def find(play: connections.Play, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``manifest``, ``attempt``, ``hosts`` (chief first) and ``ranks`` by host of a job.

    Args:
        args: those of roles/train_job/tasks/attach.yml.

    Raises:
        PlanError, OSError, ValueError: the job is not known, or not all of its hosts are here.
    """
    job = str(args["job"])
    if not job:
        raise plan.PlanError("which job? name it: -e train_job_id=JOB")
    plan.check_id(job)
    names = [host for hosts in args["groups"].values() for host in hosts]
    told = {name: play.registered(name, "__train_job_rank") for name in names}
    path = Path(args["run_dir"]).expanduser() / plan.MANIFEST_FILE
    own = records.read_json(str(path))
    kept = {name: looked["manifest"] for name, looked in told.items() if looked.get("manifest")}
    newest, warnings = manifests.choose(kept, own, job, names)
    if newest is None:
        silent = [name for name, looked in told.items() if looked.get("unreachable")]
        raise plan.PlanError(
            f"no host has anything of job {job} in {args['root']}"
            + (f", and {', '.join(silent)} did not answer" if silent else "")
            + ": is this the inventory that the job was started with?"
        )
    absent = [rank["host"] for rank in newest["ranks"]]
    absent = [host for host in absent if host not in play.hosts]
    if absent and play.limited:
        raise plan.PlanError(
            f"{', '.join(absent)} of job {job} are not in this play: run it without --limit"
        )
    facts = (own or {}).get("hosts", {})
    ranks = {
        rank["host"]: _rank(newest, rank, told.get(rank["host"], {}), facts, args["root"])
        for rank in newest["ranks"]
    }
    if newest is not own:
        path.parent.mkdir(parents=True, exist_ok=True)
        if own is not None and _attempt(own) < _attempt(newest):
            plan.set_aside(path.parent, _attempt(own))
        records.write_json(str(path), newest)
    # Of those that take part: one that was replaced may be back, with the job's files.
    holders = [name for name in ranks if name in kept]
    archive = path.with_name(records.ARCHIVE_FILE)
    if holders and not archive.exists():
        limit = int(float(args["code_limit_mb"]) * 2**20)
        sources = {name: str(Path(ranks[name]["rank_dir"]).parent) for name in holders}
        warnings += fetch_archive(play, sources, archive, newest["code_sha256"], limit)
    return {
        "warnings": warnings,
        "manifest": newest,
        "attempt": _attempt(newest),
        "hosts": list(ranks),
        "ranks": ranks,
    }


def _rank(
    manifest: dict[str, Any],
    planned: dict[str, Any],
    looked: dict[str, Any],
    facts: dict[str, Any],
    root: str,
) -> dict[str, Any]:
    """Return a rank as ``stage`` returns it, from its host or else as far as it is known.

    Args:
        facts: what this control node knows of the hosts: what another host says of one is not
            asked.
        root: where the jobs lie on a host that this control node does not know.
    """
    if looked.get("rank"):
        found = reports.rank(looked["rank"])
        same = (found["attempt"], found["task"]) == (manifest["attempt"], planned["task"])
        if same and found["job"] == manifest["job"]:
            return found
    known = facts.get(planned["host"], {"root": root, "host_python": "python3"})
    job_dir = f"{known['root']}/jobs/{manifest['job']}"
    error = "whoever started the job ended before its turn came"
    return {
        "job": manifest["job"],
        "task": planned["task"],
        "attempt": manifest["attempt"],
        "rank_dir": f"{job_dir}/{planned['task']}",
        "home": f"{job_dir}/{planned['home']}",
        "port": planned["port"],
        "service": planned["service"],
        "host_python": known["host_python"],
        "place": f"{planned['host']} alone",
        "start_error": "" if looked.get("unreachable") else error,
    }


def fetch_archive(
    play: connections.Play, folders: dict[str, str], archive: Path, sha256: str, limit: int
) -> list[str]:
    """Fetch what was sent to the hosts, from the first of them that has it as it was.

    Another attempt needs it, and it alone: what goes wrong ends no watch.

    Args:
        folders: the job's folder, by inventory host.
        archive: where it goes.
        sha256: of what was sent, as in the manifest.
        limit: the most bytes that the files in it may have.

    Returns:
        What to warn of: why there is no archive, by host.
    """
    warnings = []
    for host, folder in folders.items():
        try:
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=archive.parent) as fresh:
                fetched = Path(fresh, archive.name)
                play.fetch(host, f"{folder}/{archive.name}", fetched, limit)
                if archives.digest(fetched, staging.LARGEST) != sha256:
                    raise archives.ArchiveError("it is not what the job was started with")
                fetched.replace(archive)
            return []
        except (archives.ArchiveError, *connections.FETCH_ERRORS) as error:
            reason = reports.bounded(str(error) or type(error).__name__)
            warnings.append(f"{archive.name} was not fetched from {host}: {reason}")
    return [
        *warnings,
        f"without {archive.name} the job cannot be started again from here: attach again (its "
        "limit is train_job_code_limit_mb)",
    ]


def _attempt(manifest: dict[str, Any]) -> int:
    return int(manifest["attempt"])
