"""What is planned on the control node before a gang starts: its ranks, its folder, its manifest."""

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

#: The facts of every inventory host that takes part, as ``check_host`` reported them.
Hosts = Mapping[str, HostFacts]


class PlanError(Exception):
    """The job cannot start; the message is for the user."""


class NothingAnsweredError(PlanError):
    """No host of a play could be logged in to; why not is in the results of an earlier task."""


def plan_ranks(groups: Mapping[str, Sequence[str]], hosts: Hosts) -> list[PlannedRank]:
    """Return the ranks of the gang, chief first; ``groups`` has the hosts of each task type in the
    order of their indices. PlanError: such a gang cannot be.
    """
    members = [(kind, host) for kind in records.TASK_TYPES for host in groups.get(kind, ())]
    if not groups.get("worker") and not groups.get("chief"):
        raise PlanError("the inventory has no host in the groups chief and worker: add one")
    for _, host in members:
        kinds = [kind for kind, name in members if name == host]
        if len(kinds) > 1:
            raise PlanError(
                f"host {host} is in the groups {' and '.join(kinds)}: one inventory host is one "
                "rank; give the second rank an inventory host of its own with the same ansible_host"
            )
    for kind in ("chief", "evaluator"):
        if len(groups.get(kind, ())) > 1:
            named = ", ".join(groups[kind])
            raise PlanError(f"group {kind} has {named}: TensorFlow takes at most one {kind}")
    _check_ports(members, hosts)
    _check_versions(hosts)

    cluster_size = sum(kind != "evaluator" for kind, _ in members)
    # Without a chief that coordinates them, workers of parameter servers train by themselves.
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
                    f"{other} and {host} are two ranks with one address and port, {address}:{port}:"
                    " give each a train_job_port of its own"
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
    """Plan for ``ranks`` the folder of each host's checkpoints, which is named for its task in the
    first attempt that it took part in (``results_dirs``), and who keeps a ``copy``. That is the
    first worker on another machine than the chief's: if that machine is lost, it becomes the chief.
    """
    chief = hosts[ranks[0]["host"]]["machine"]
    for rank in ranks:
        rank["results_dir"] = results_dirs.get(rank["host"], rank["task"])
        is_apart = hosts[rank["host"]]["machine"] != chief
        rank["checkpoint_copy"] = copy and is_apart and not rank["non_training"]
        copy = copy and not rank["checkpoint_copy"]


def check_id(job: str) -> None:
    """Refuse (PlanError) what is no job id: it names folders."""
    if not records.JOB_PATTERN.fullmatch(job):
        raise PlanError(
            f"train_job_id {job!r} is no job id: use 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )


#: Names of scripts that say nothing about what they train.
_GENERAL_NAMES = ("main", "train", "run", "__main__")


def choose_job(job: str, script: Path, runs_dir: Path) -> tuple[str, Path]:
    """Return the job's id and its new, empty folder on the control node.

    Without an id that is asked for (``job``) it is the script's name and the time; of a script with
    a general name, such as main.py, the name of its folder. PlanError: the id is malformed, or its
    folder holds an earlier run.
    """
    if job:
        check_id(job)
        run_dir = runs_dir / job
        if (run_dir / MANIFEST_FILE).exists():
            raise PlanError(
                f"{run_dir} holds job {job} already, running or ended: attach to it with "
                f"`{suggestions.command('attach', job=job)}`, or choose another id (--job, "
                "train_job_id)"
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
    """Return what an earlier attempt of ``job`` wrote. PlanError: there is no such job here."""
    check_id(job)
    manifest = gang_records.read_manifest(runs_dir / job)
    if manifest is None:
        raise PlanError(
            f"there is no {runs_dir / job / MANIFEST_FILE}: another attempt (train_job_attempt) "
            "needs an earlier one; attach to the job first with "
            f"`{suggestions.command('attach', job=job)}`"
        )
    return manifest


def staged(manifest: Manifest) -> Manifest:
    """Return ``manifest`` with its last attempt marked as staged: only such ones are restarts."""
    *earlier, last = manifest["attempts"]
    if last["staged"]:
        return manifest
    return {**manifest, "attempts": [*earlier, {**last, "staged": True}]}
