"""Plans a job on the control node before it starts: its ranks, its folder, its manifest."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from train.gang import records as gang_records
from train.gang import run_folders, suggestions
from train.gang.records import MANIFEST_FILE, Manifest, PlannedRank
from train.host import records
from train.host.records import HostFacts

#: Facts about every participating inventory host, as reported by ``check_host``.
Hosts = Mapping[str, HostFacts]


class PlanError(Exception):
    """The job cannot start. The message is for the user."""


class NothingAnsweredError(PlanError):
    """No host of a play answered. The results of an earlier task have the reasons."""


def plan_ranks(groups: Mapping[str, Sequence[str]], hosts: Hosts) -> list[PlannedRank]:
    """Return the ranks of the job, chief first.

    ``groups`` has the hosts of each task type, in the order of their indices. Raise PlanError if
    the ranks cannot form a cluster.
    """
    members = [(kind, host) for kind in records.TASK_TYPES for host in groups.get(kind, ())]
    if not groups.get("worker") and not groups.get("chief"):
        raise PlanError("the inventory groups chief and worker are empty: add a host")
    for _, host in members:
        kinds = [kind for kind, name in members if name == host]
        if len(kinds) > 1:
            raise PlanError(
                f"host {host} is in the groups {' and '.join(kinds)}, but each inventory "
                "host is one rank: for the second rank, add another inventory host with "
                "the same ansible_host"
            )
    for kind in ("chief", "evaluator"):
        if len(groups.get(kind, ())) > 1:
            named = ", ".join(groups[kind])
            raise PlanError(f"group {kind} has {named}, but TensorFlow supports at most one {kind}")
    _check_ports(members, hosts)
    _check_versions(hosts)

    cluster_size = sum(kind != "evaluator" for kind, _ in members)
    # Without a chief to coordinate them, workers with parameter servers train by themselves.
    served = bool(groups.get("ps")) and bool(groups.get("chief"))
    machines = Counter(hosts[host]["machine"] for _, host in members)
    return [
        PlannedRank(
            host=host,
            task=f"{kind}-{groups[kind].index(host)}",
            type=kind,
            index=groups[kind].index(host),
            port=hosts[host]["port"] if kind != "evaluator" and cluster_size > 1 else None,
            non_training=kind in ("ps", "evaluator") or (served and kind == "worker"),
            ranks_on_machine=machines[hosts[host]["machine"]],
            gpus=None,
            results_dir="",
            checkpoint_copy=False,
        )
        for kind, host in members
    ]


def _check_ports(members: Sequence[tuple[str, str]], hosts: Hosts) -> None:
    taken: dict[tuple[str, int | None], str] = {}
    for host in (host for kind, host in members if kind != "evaluator"):
        address, port = hosts[host]["address"], hosts[host]["port"]
        for place in (address, hosts[host]["machine"]):
            other = taken.setdefault((place, port), host)
            if other != host:
                raise PlanError(
                    f"the ranks {other} and {host} have the same address and port, "
                    f"{address}:{port}: set a different train_job_port for each"
                )


def _check_versions(hosts: Hosts) -> None:
    versions: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        if facts["tensorflow"] is not None:
            versions.setdefault(facts["tensorflow"], []).append(host)
    if len(versions) > 1:
        found = "; ".join(f"{v} on {', '.join(names)}" for v, names in sorted(versions.items()))
        raise PlanError(
            f"the hosts have different versions of TensorFlow ({found}): run "
            f"`{suggestions.command('setup', tags='tensorflow')}`"
        )


def keep_checkpoints(
    ranks: Sequence[PlannedRank], hosts: Hosts, results_dirs: Mapping[str, str], copy: bool
) -> None:
    """Plan the checkpoint folder of each rank's host, and which rank keeps a ``copy``.

    A folder is named after the host's task in its first attempt (``results_dirs``). The copy is
    kept by the first worker that is not on the chief's machine. If that machine is lost, this
    worker becomes the chief.
    """
    chief = hosts[ranks[0]["host"]]["machine"]
    for rank in ranks:
        rank["results_dir"] = results_dirs.get(rank["host"], rank["task"])
        is_apart = hosts[rank["host"]]["machine"] != chief
        rank["checkpoint_copy"] = copy and is_apart and not rank["non_training"]
        copy = copy and not rank["checkpoint_copy"]


def check_id(job: str) -> None:
    """Raise PlanError if a job id, which names folders, is invalid."""
    if not records.JOB_PATTERN.fullmatch(job):
        raise PlanError(
            f"train_job_id {job!r} is not a valid job id: use 1 to 64 letters, digits, '.', "
            "'_' or '-', starting with a letter or digit"
        )


#: Script names that do not describe what they train.
_GENERAL_NAMES = ("main", "train", "run", "__main__")


def choose_job(job: str, script: Path, runs_dir: Path) -> tuple[str, Path]:
    """Return the job's id and its new, empty folder on the control node.

    By default (``job`` is empty), the id is the script's name and the time. For a generic name such
    as main.py, the folder's name is used. Raise PlanError if the id is invalid, or its folder
    already has a job.
    """
    if job:
        check_id(job)
        run_dir = runs_dir / job
        if (run_dir / MANIFEST_FILE).exists():
            raise PlanError(
                f"{run_dir} already contains job {job}, which is running or has ended: "
                f"attach to it with `{suggestions.command('attach', job=job)}`, or choose "
                "another id (--job, train_job_id)"
            )
        run_folders.create(run_dir, exist_ok=True)
        return job, run_dir
    names = [script.stem, script.absolute().parent.name]
    if script.stem.lower() in _GENERAL_NAMES:
        names.reverse()
    plain = (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].strip("-") for name in names)
    stem = next(filter(None, plain), "job")
    while True:
        job = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        with contextlib.suppress(FileExistsError):
            run_folders.create(runs_dir / job, exist_ok=False)
            return job, runs_dir / job
        time.sleep(0.2)


def read_manifest(job: str, runs_dir: Path) -> Manifest:
    """Return the manifest of an earlier attempt of ``job``. Raise PlanError if there is none."""
    check_id(job)
    manifest = gang_records.read_manifest(runs_dir / job)
    if manifest is None:
        raise PlanError(
            f"{runs_dir / job / MANIFEST_FILE} does not exist, but another attempt "
            "(train_job_attempt) needs an earlier one: attach to the job first with "
            f"`{suggestions.command('attach', job=job)}`"
        )
    return manifest


def staged(manifest: Manifest) -> Manifest:
    """Return ``manifest`` with its last attempt marked as staged. Only those count as restarts."""
    *earlier, last = manifest["attempts"]
    if last["staged"]:
        return manifest
    return {**manifest, "attempts": [*earlier, {**last, "staged": True}]}
