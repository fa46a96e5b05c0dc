"""Plans one attempt: ranks and their GPUs, the code archive, the manifest."""

from __future__ import annotations

import json
import platform
import secrets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ansible.release import __version__ as ansible_version

from train.gang import connections, framework_versions, notify, reports, run_folders, suggestions
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import (
    MANIFEST_FILE,
    Attempt,
    Manifest,
    PlannedRank,
    read_result,
    staged,
)
from train.gang.login_failures import names_of
from train.gang.plan import (
    gpu_assignment,
    machine_ranks,
    placement,
    planned_ranks,
    script_files,
    script_imports,
    script_packages,
    withdrawal,
)
from train.gang.variables import job_variables, script_environment
from train.host import end_causes, frameworks, json_files, rank_files, records
from train.host.preflight import INSTALLS

#: The variable with which a script chooses another library than gloo.
COLLECTIVES = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"


def check_variables(play: connections.Play, args: Args) -> dict[str, object]:
    """Check the variables of all hosts. Raise UserError with all problems.

    Returns:
        ``framework``, that of the job; ``ranks``, the script's ``arguments`` and
        ``environment_names`` by host;
        ``environment_names``, the names in the environments of all ranks;
        ``environment_differs``, the names whose values differ between ranks; ``modules``, those
        that the script imports from packages; and ``beside`` (see connections.Play.neighbors).
    """
    names = set(job_variables.options()[0]) - {"train_job_groups", job_variables.ENVIRONMENT}
    members = {h: kind for kind, hosts in args["groups"].items() for h in hosts if h in play.hosts}
    machines = {host: play.machine_of(host) for host in members}
    by_machine = {
        name: play.given(name, sorted(names)) for name in dict.fromkeys(machines.values())
    }
    checked = job_variables.check(by_machine, connections.written)
    framework = _framework_of(args)
    planned_ranks.check_groups(args["groups"], framework)
    machine_ranks.check_added(play, {name: given.values for name, given in by_machine.items()})
    arguments = {host: checked[machine] for host, machine in machines.items()}
    environments = {host: by_machine[machine].environment[0] for host, machine in machines.items()}
    ranks = [env for host, env in environments.items() if members[host] != placement.SPARE]
    return {
        "changed": False,
        "framework": framework,
        "modules": script_packages.script_modules(args),
        "ranks": {
            host: {"arguments": arguments[host], "environment_names": sorted(environments[host])}
            for host in members
        },
        "environment_names": sorted({name for env in ranks for name in env}),
        "environment_differs": script_environment.differing(ranks),
        "beside": play.neighbors(),
    }


def _framework_of(args: Args) -> str:
    """Return the framework of a job. A later attempt has that of the first."""
    if int(args["attempt"]) == 1:
        return str(args["framework"])
    manifest = run_folders.read_manifest(args["job"], Path(args["runs_dir"]).expanduser())
    return manifest.get("framework", frameworks.TENSORFLOW)


def plan_attempt(play: connections.Play, args: Args) -> dict[str, object]:
    """Plan an attempt, pack the code and write the manifest. In check mode, write nothing.

    Raise UserError or OSError if the attempt cannot start.
    """
    groups = {kind: list(hosts) for kind, hosts in args["placement"]["groups"].items()}
    names = list(args["placement"]["hosts"])
    checks = play.checks(args["checks"])
    hosts = {name: reports.facts(checks[name]["host"]) for name in names}
    packages = args["packages"]
    hosts = dict(script_packages.with_packages(hosts, packages))
    framework = str(args["variables"]["framework"])
    ranks = planned_ranks.plan_ranks(groups, hosts, framework)
    gpu_assignment.share(ranks, hosts, play.machine_of)
    names_of_variables = args["variables"]["environment_names"]
    if framework == frameworks.JAX and COLLECTIVES not in names_of_variables:
        planned_ranks.check_gloo(ranks, hosts)
    configs = {rank["host"]: json.loads(args["tf_config"][rank["host"]]) for rank in ranks}
    rank_environments = {rank["host"]: args["rank_environments"][rank["host"]] for rank in ranks}
    checked = {
        "changed": False,
        "framework": framework,
        "tf_config": configs,
        "rank_environments": rank_environments,
    }
    attempt, job = int(args["attempt"]), str(args["job"])
    runs_dir = Path(args["runs_dir"]).expanduser().resolve()
    if attempt > 1:
        manifest, run_dir = run_folders.read_manifest(job, runs_dir), runs_dir / job
        if not args["automatic"]:
            manifest = {**manifest, "policy": args["settings"]["policy"]}
        archive = run_dir / rank_files.ARCHIVE_FILE
        script_files.check_archive(archive, manifest["code_sha256"])
        script_files.check_arguments(manifest, archive, configs)
    else:
        script = script_files.find_script(args["script"], str(args["module"]))
        include = script_files.find_includes(args["include"])
        exclude = [args["exclude"]] if isinstance(args["exclude"], str) else args["exclude"]
        limit_mb = float(args["code_limit_mb"])
        code = script_files.code_files(script.folder, include, exclude, limit_mb)
        _require_framework(play, args, script, code, hosts)
        manifest = _first_manifest(script, include, args, ranks[0]["host"])
        script_files.check_arguments(manifest, code, configs)
        if play.check_mode:
            return checked
        job, run_dir = run_folders.choose_job(job, script.path, runs_dir)
        if args["readable_by"] == "all":
            run_folders.open_to_all(run_dir)
        archive = run_dir / rank_files.ARCHIVE_FILE
        manifest |= {
            "job": job,
            "code_sha256": script_files.pack(code, archive),
            "packages": packages,
        }
        if packages:
            script_packages.keep(packages, run_dir)
    copy = bool(args["checkpoint_copy"]) and not args["checkpoint_dir"] and not groups["ps"]
    planned_ranks.keep_checkpoints(ranks, hosts, manifest.get("results_dirs", {}), copy)
    was_preempted = attempt > 1 and _was_preempted(run_dir, attempt - 1)
    manifest = _with_attempt(manifest, {**args, "preempted": was_preempted}, ranks, hosts)
    # The same for all ranks, so it is noted once: with hundreds of them, each copy is long.
    manifest["cluster"] = configs[ranks[0]["host"]]["cluster"]
    if play.check_mode:
        return checked
    if attempt > 1:
        withdrawal.set_aside(run_dir, attempt - 1)
    json_files.write_json(str(run_dir / MANIFEST_FILE), manifest)
    return {
        "changed": True,
        "warnings": [*_unused_gpus(hosts), *_notify_start(play, manifest, run_dir)],
        "job": job,
        "attempt": attempt,
        "run_dir": str(run_dir),
        "archive": str(archive),
        "hosts": names,
        "ranks": {rank["host"]: rank for rank in ranks},
        "rank_environments": rank_environments,
        "visible_gpus": gpu_assignment.visible(ranks, hosts, framework),
        "manifest": staged(manifest),  # in this form, it is only stored on the hosts
    }


def _require_framework(
    play: connections.Play,
    args: Args,
    script: script_files.Script,
    code: Sequence[tuple[Path, str]],
    hosts: planned_ranks.FactsByHost,
) -> None:
    """Raise UserError if hosts lack the framework and the script imports it on startup."""
    framework = str(args["variables"]["framework"])
    if framework != frameworks.TENSORFLOW and script.path == script_files.WORKER:
        raise UserError(
            f"train/worker.py, the project's training program, needs TensorFlow, but "
            f"train_job_framework is {framework}: pass your own script (--script, train_job_script)"
        )
    if framework == frameworks.NONE or (framework != frameworks.TENSORFLOW and args["packages"]):
        return  # the script's packages may contain JAX or PyTorch
    lacking: dict[str, list[str]] = {}
    checks = play.checks(args["checks"])
    for host, facts in hosts.items():
        names = args["variables"]["ranks"][host]["environment_names"]
        found = checks[host].get("lacks_framework")
        # With PYTHONPATH, the script may find packages that the interpreter alone does not.
        if found is True and "PYTHONPATH" not in names:
            lacking.setdefault(facts["python"], []).append(host)
    files = {name: path for path, name in code}
    entry = Path(script.entry).as_posix()
    if lacking and (
        script.path == script_files.WORKER or script_imports.needs(framework, entry, files)
    ):
        name = frameworks.NAMES[framework]
        install = f"list {framework} in the script's requirements.txt and pass --requirements"
        if framework in INSTALLS:
            install = suggestions.filled(INSTALLS[framework])
        raise UserError(
            "; ".join(
                f"{name} is not installed on {names_of(names)}: {python} cannot import "
                f"it, but {script.path.name} needs it"
                for python, names in lacking.items()
            )
            + f". Remedy: {install}, or set train_job_python to an interpreter with {name}"
        )


def _git_state(folder: Path) -> dict[str, str | bool] | None:
    """Return ``commit`` and ``clean`` of the git work tree that contains ``folder``, or None."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        output = subprocess.check_output(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        return output.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "clean": not git("status", "--porcelain", "--", "."),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _first_manifest(
    script: script_files.Script, include: Sequence[Path], args: Args, first: str
) -> Manifest:
    """Return the fields that all attempts share, except the job's id and ``code_sha256``.

    ``arguments`` are those of the host ``first``. Hosts with other arguments are in
    ``rank_arguments``.
    """
    by_host = {host: list(rank["arguments"]) for host, rank in args["variables"]["ranks"].items()}
    manifest: Manifest = {
        "version": records.FORMAT_VERSION,
        "created_at": round(time.time(), 3),
        "script": str(script.path),
        "entry": script.path.name,
        "module": script.module,
        "include": [str(path) for path in include],
        "arguments": by_host[first],
        "rank_arguments": {h: words for h, words in by_host.items() if words != by_host[first]},
        "environment_names": list(args["variables"]["environment_names"]),
        "environment_differs": list(args["variables"]["environment_differs"]),
        "git": _git_state(script.folder),
        "control": {"python": platform.python_version(), "ansible_core": ansible_version},
    }
    return {**manifest, **args["settings"]}


def _was_preempted(run_dir: Path, attempt: int) -> bool:
    """Return whether an attempt ended because a host will be reclaimed."""
    folder = run_dir / rank_files.ATTEMPTS_DIR / str(attempt)
    ended = read_result(run_dir) or read_result(folder)
    return ended is not None and ended.get("cause") == end_causes.PREEMPTED


def _with_attempt(
    manifest: Manifest, args: Args, ranks: list[PlannedRank], hosts: planned_ranks.FactsByHost
) -> Manifest:
    """Return ``manifest`` with the data of this attempt, including its ``ranks`` and ``hosts``.

    With it, another control node can follow the job or start its next attempt.
    """
    planned: Attempt = {
        "attempt": int(args["attempt"]),
        "planned_at": round(time.time(), 3),
        "claim": secrets.token_hex(8),
        "staged": False,
        "ranks": {rank["task"]: rank["host"] for rank in ranks},
        "left_out": dict(args["placement"]["left_out"]),
        "grown": bool(args["grown"]),
        "preempted": bool(args["preempted"]),
        "requested": not args["automatic"],
    }
    return {
        **manifest,
        "attempt": planned["attempt"],
        "attempts": [*manifest.get("attempts", []), planned],
        "versions": {**manifest["control"], **framework_versions.of_all(hosts)},
        "results_dirs": manifest.get("results_dirs", {})
        | {rank["host"]: rank["results_dir"] for rank in ranks},
        "hosts": dict(hosts),
        "ranks": ranks,
    }


def _unused_gpus(hosts: planned_ranks.FactsByHost) -> list[str]:
    """Return a warning about hosts with GPUs that the job is set not to use."""
    unused = [
        host
        for host, facts in hosts.items()
        if facts["gpus"] and facts["gpus_wanted"] == gpu_assignment.NONE
    ]
    warning = (
        f"the GPUs of {', '.join(unused)} are not used, because train_job_gpus is none: to use "
        "them, set train_job_gpus to auto, and tensorflow_variant to auto or gpu for setup.yml"
    )
    return [warning] if unused else []


def _notify_start(play: connections.Play, manifest: Manifest, run_dir: Path) -> list[str]:
    """Send a notification that the job starts, without waiting for its delivery. Return errors."""
    event, message, attempt = "start", "", manifest["attempt"]
    if attempt > 1:
        before = read_result(run_dir / rank_files.ATTEMPTS_DIR / str(attempt - 1))
        event, message = "restart", before["message"] if before else ""
    hosts = [rank["host"] for rank in manifest["ranks"]]
    return notify.send(
        play.notification(hosts),
        event,
        wait=False,
        job=manifest["job"],
        attempt=attempt,
        state="starting",
        message=message,
        hosts=hosts,
        run_dir=run_dir,
    )
