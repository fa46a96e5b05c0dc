"""Merges the job lists of all hosts, and selects jobs and ranks from them."""

from __future__ import annotations

from train.gang import connections, listing, reports, suggestions
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import MergedJob


def _listed(play: connections.Play, args: Args) -> tuple[list[MergedJob], list[str], list[str]]:
    """Return all jobs in the hosts' results, the hosts without a valid answer, and warnings."""
    names = [str(host) for members in args["groups"].values() for host in members]
    found, warnings = {}, []
    for name in names:
        listed = play.registered(name, args["registered"])
        if "jobs" in listed:
            try:
                found[name], wrong = reports.listing(listed["jobs"])
                warnings += [
                    f"ignoring an entry in the job list of {name}: {reason}" for reason in wrong[:3]
                ]
            except reports.ReportError as error:
                warnings.append(f"ignoring the malformed job list of {name}: {error}")
    return listing.merge(found), [name for name in names if name not in found], warnings


def jobs(play: connections.Play, args: Args) -> dict[str, object]:
    """Return all ``jobs``, a line about each in ``lines``, and ``warnings``."""
    found, _, warnings = _listed(play, args)
    lines = [listing.line_of(job) for job in found]
    return {"jobs": found, "lines": lines, "warnings": warnings}


def choose_old(play: connections.Play, args: Args) -> dict[str, object]:
    """Return the jobs to ``remove`` from each host, and the reasons why others are ``kept``."""
    found, unreachable, warnings = _listed(play, args)
    age, keep = args.get("older_than"), args.get("keep")
    old, kept = listing.choose_old(
        found,
        unreachable,
        names=[host for members in args["groups"].values() for host in members],
        older_than=listing.seconds_of(str(age)) if age else None,
        keep=None if keep in (None, "") else int(keep),
    )
    return {"warnings": warnings, "remove": listing.where(old), "kept": kept}


def ranks(play: connections.Play, args: Args) -> dict[str, object]:
    """Return the ``attempt``, ``restarts`` and ``ranks`` of a job.

    ``ranks`` is empty unless the attempt is later than ``after``. Raise UserError if no host has a
    rank of the job.
    """
    found, _, warnings = _listed(play, args)
    if not found:
        raise UserError(
            f"no host of this inventory has a rank of job {args['job']}: "
            f"`{suggestions.command('list')}` shows all jobs"
        )
    job, after = found[0], int(args.get("after") or 0)
    return {
        "warnings": warnings,
        "attempt": job["attempt"],
        "restarts": job["restarts"],
        "ranks": job["ranks"] if job["attempt"] > after else [],
    }
