"""Chooses the hosts of an attempt from the results of their checks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from train.gang import (
    connections,
    framework_versions,
    login_failures,
    reports,
    run_folders,
    suggestions,
)
from train.gang.connections import Args, Returned
from train.gang.errors import NothingAnsweredError, UserError
from train.gang.job_records import MANIFEST_FILE, Manifest, hosts_of
from train.gang.plan import machine_ranks, placement, renaming
from train.host import json_files
from train.host.host_facts import HostFacts

#: Beginnings of the names of training ranks.
_TRAINING = ("chief-", "worker-")


def choose_hosts(play: connections.Play, args: Args) -> dict[str, object]:
    """Choose the hosts of an attempt from the results of ``gang_check``.

    Hosts in ``without`` are excluded for the given reasons. An ``automatic`` restart does not
    change the size of a job. If the hosts of a later attempt would have different versions of the
    framework, those with another version than the job's are excluded as well, unless the others are
    not enough. ``warnings`` are about excluded hosts, and about machines with several names. Raise
    UserError if the remaining hosts are not enough, NothingAnsweredError if no host answered.
    """
    groups = {
        kind: machine_ranks.in_order(hosts, play.machine_of)
        for kind, hosts in args["groups"].items()
    }
    first, earlier = int(args["attempt"]) == 1, []
    names = [host for members in groups.values() for host in members]
    checked = play.checks(args["checks"])
    checks = {host: checked.get(host, {}) for host in names}
    if not first:
        manifest = _known_manifest(play, checks, args)
        earlier = [rank["host"] for rank in manifest["ranks"]]
    warnings = []
    if not first and args["automatic"]:
        groups, new = _of_the_job(groups, manifest, least=int(args["min_workers"]))
        checks = {host: checks[host] for members in groups.values() for host in members}
        if new:
            verb = "is" if len(new) == 1 else "are"
            warnings = [
                f"{login_failures.names_of(new)} {verb} not used, because the job was started "
                f"without {'it' if len(new) == 1 else 'them'}"
            ]
    missing, found, unreachable = _facts(play, checks, first)
    machines = {host: facts["machine"] for host, facts in found.items()}
    missing = {**(args["without"] or {}), **missing}
    if unreachable and len(unreachable) == len(checks):
        raise NothingAnsweredError("no host answered; nothing was started")
    # The task that checks the hosts shows why they are unreachable.
    brief = {**missing, **dict.fromkeys(unreachable, "unreachable")}
    least = int(args["min_workers"])
    chosen = placement.choose(groups, brief, least=least, earlier=earlier)
    versions = framework_versions.of_all({host: found[host] for host in chosen["hosts"]})
    if not first and any(len(several) > 1 for several in versions.values()):
        known = manifest.get("versions", {})
        differing = {
            host: why
            for host, facts in found.items()
            if (why := framework_versions.differing(facts, known))
        }
        with contextlib.suppress(UserError):  # the plan then names the versions
            chosen = placement.choose(groups, {**brief, **differing}, least=least, earlier=earlier)
            missing = {**differing, **missing}
    chosen["left_out"] = {host: missing[host] for host in chosen["left_out"]}
    reached = {}  # machines are distinguished as in playbooks/machines.yml
    for host in machines:
        plugin, address, port, _ = play.connection(host)
        reached[host] = "local" if plugin == "local" else f"{address} port {port or 22}"
    warnings += placement.aliases(machines, reached)
    warnings += _left_out(chosen["left_out"])
    return {**chosen, "warnings": warnings}


def _of_the_job(
    groups: Mapping[str, list[str]], manifest: Manifest, least: int
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the hosts of a job that is restarted automatically, and those that are new to it.

    The inventory may be another one than at the start, because any control node can follow a job.
    Raise UserError if it has too few hosts.
    """
    trainers = [rank for rank in manifest["ranks"] if rank["task"].startswith(_TRAINING)]
    wanted = [*groups.get("chief", ()), *groups.get("worker", ())]
    size = len(trainers)
    if len(wanted) < (min(least, size) if least else size):
        again = suggestions.command("restart", job=manifest["job"])
        raise UserError(
            f"the inventory has {len(wanted)} of the job's {size} workers: use the inventory with "
            f"which the job was started, or start the next attempt with fewer workers: {again}"
        )
    known = hosts_of(manifest)
    # A host may have another name now, so new ones are used as far as they are needed.
    unknown = [host for host in wanted if host not in known]
    needed = max(0, size - (len(wanted) - len(unknown)))
    new = unknown[needed:]
    return {kind: [h for h in hosts if h not in new] for kind, hosts in groups.items()}, new


def _known_manifest(play: connections.Play, checks: Mapping[str, Returned], args: Args) -> Manifest:
    """Return the previous attempt's manifest with the host names of this play, and store it."""
    runs_dir = Path(args["runs_dir"]).expanduser()
    manifest = run_folders.read_manifest(args["job"], runs_dir)
    reported = {host: check.get("ranks") or () for host, check in checks.items()}
    named = renaming.in_names_of(manifest, renaming.inventory_of(play, list(checks), reported))
    if named is not manifest and not play.check_mode:
        json_files.write_json(str(runs_dir / args["job"] / MANIFEST_FILE), named)
    return named


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """Return a warning for each reason for which hosts are excluded."""
    return [
        f"{login_failures.names_of(names)} {'is' if len(names) == 1 else 'are'} excluded: {why}"
        for why, names in placement.by_reason(reasons).items()
    ]


def _facts(
    play: connections.Play, checks: Mapping[str, Returned], first: bool
) -> tuple[dict[str, str], dict[str, HostFacts], list[str]]:
    """Return excluded hosts with reasons, the facts of the others, and the unreachable hosts.

    In the first attempt, a reachable host that is unsuitable raises UserError.
    """
    missing, lacking, found = {}, {}, {}
    for host, checked in checks.items():
        if host not in play.hosts:
            lacking[host] = (
                "is not in this play, but a gang needs all hosts of its inventory: run the "
                "playbook without --limit, and include all groups in `hosts:`"
            )
            continue
        reason = reports.bounded(str(checked.get("msg") or "was not checked").strip())
        if checked.get("unreachable"):
            missing[host] = f"unreachable: {login_failures.of_result(checked).sentence}"
        elif "host" not in checked:
            lacking[host] = reason
        else:
            try:
                found[host] = reports.facts(checked["host"])
            except reports.ReportError as error:
                lacking[host] = f"its report is malformed: {error}"
    if first and lacking:
        shared = placement.by_reason(lacking).items()
        named = (f"{login_failures.names_of(hosts)}: {reason}" for reason, hosts in shared)
        raise UserError("\n".join(named))
    return {**missing, **lacking}, found, list(missing)
