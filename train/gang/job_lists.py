"""Merges the job lists of all hosts, and selects jobs and ranks from them."""

from __future__ import annotations

from train.gang import answers, connections, listing, reports, suggestions
from train.gang.connections import Args
from train.gang.errors import NothingAnsweredError, UserError
from train.gang.job_records import MergedJob
from train.gang.login_failures import names_of
from train.host.records import ListedJob


def _listed(play: connections.Play, args: Args) -> tuple[list[MergedJob], list[str], list[str]]:
    """Return all jobs in the hosts' results, the hosts without a valid answer, and warnings."""
    names = _names(args)
    found: dict[str, list[ListedJob]] = {}
    warnings: list[str] = []
    listings = {name: play.registered(name, args["registered"]) for name in names}
    for name, listed in listings.items():
        if "jobs" in listed:
            try:
                found[name], wrong = reports.listing(listed["jobs"])
                warnings += [
                    f"ignoring an entry in the job list of {name}: {reason}" for reason in wrong[:3]
                ]
            except reports.ReportError as error:
                warnings.append(f"ignoring the malformed job list of {name}: {error}")
    unanswered = [n for n in names if listings[n].get(listing.LISTED_BY, n) not in found]
    return listing.merge(found), unanswered, warnings


def _names(args: Args) -> list[str]:
    """Return the names of all inventory hosts in the groups."""
    return [str(host) for members in args["groups"].values() for host in members]


def jobs(play: connections.Play, args: Args) -> dict[str, object]:
    """Return all ``jobs``, a line about each in ``lines``, and ``warnings``."""
    found, _, warnings = _listed(play, args)
    lines = [listing.line_of(job) for job in found]
    return {"jobs": found, "lines": lines, "warnings": warnings}


def choose_old(play: connections.Play, args: Args) -> dict[str, object]:
    """Return the jobs to ``remove`` from each host that answered, and why others are ``kept``."""
    found, unreachable, warnings = _listed(play, args)
    names = _names(args)
    age, keep = args.get("older_than"), args.get("keep")
    old, kept = listing.choose_old(
        found,
        unreachable,
        names=names,
        older_than=listing.seconds_of(str(age)) if age else None,
        keep=None if keep in (None, "") else int(keep),
    )
    answered = [host for host in names if host not in unreachable]
    chosen = listing.where(old)
    remove = {host: chosen.get(host, []) for host in answered}
    return {"warnings": warnings, "remove": remove, "kept": kept}


def ranks(play: connections.Play, args: Args) -> dict[str, object]:
    """Return the ``attempt``, ``restarts`` and ``ranks`` of a job.

    ``ranks`` is empty unless the attempt is later than ``after``. Raise UserError if no host has a
    rank of the job, NothingAnsweredError if no host can be reached.
    """
    found, unanswered, warnings = _listed(play, args)
    if not found:
        failed = answers.failed(play.of_gang(args["registered"]).get("hosts") or {})
        if len(failed) == len(_names(args)):
            raise NothingAnsweredError(answers.reasons(failed))
        missing = f" ({names_of(unanswered)} did not answer)" if unanswered else ""
        raise UserError(
            f"no host of this inventory has a rank of job {args['job']}{missing}: "
            f"`{suggestions.command('list')}` shows all jobs"
        )
    job, after = found[0], int(args.get("after") or 0)
    return {
        "warnings": warnings,
        "attempt": job["attempt"],
        "restarts": job["restarts"],
        "ranks": job["ranks"] if job["attempt"] > after else [],
    }
