"""Locks the packages of a job's script, and finds the hosts that lack them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from train.gang import REPOSITORY, connections, reports, run_folders, suggestions
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import PACKAGES_DIR, Packages
from train.gang.login_failures import names_of
from train.gang.packages import locks, requested
from train.gang.packages.locks import Lock
from train.gang.packages.names import package_of
from train.gang.packages.requested import Requested
from train.gang.plan import script_files, script_imports
from train.gang.plan.planned_ranks import FactsByHost
from train.host.host_facts import Environment, HostFacts

#: The folder of the role tensorflow's own locks, and their names by framework.
_LOCKS = REPOSITORY / "roles/tensorflow/files"
_LOCK_NAMES = {"tensorflow": "{}.txt", "jax": "jax-{}.txt", "none": "bare.txt"}


def script_modules(args: Args) -> list[str]:
    """Return the modules that the script imports from packages.

    Return an empty list if the script cannot be found. A later task reports that.
    """
    try:
        script = script_files.find_script(args["script"], str(args["module"]))
        if script.path == script_files.WORKER:
            return []  # it needs only the packages of TensorFlow's environment
        included = script_files.find_includes(args["include"])
        code = script_files.code_files(script.folder, included, limit_mb=float("inf"))
        files = {name: path for path, name in code}
        return script_imports.packages(Path(script.entry).as_posix(), files)
    except (UserError, OSError):
        return []


def lock_packages(play: connections.Play, args: Args) -> dict[str, object]:
    """Lock the script's requirements for the hosts of the attempt.

    Raise UserError if they contradict the hosts' packages.

    Returns:
        ``packages``, which is job_records.Packages or None; ``installs``, the ``root``,
        ``framework`` and ``variant`` of the environment on each inventory host that lacks the
        packages; ``warnings``.
    """
    checks = play.checks(args["checks"])
    hosts = {name: reports.facts(checks[name]["host"]) for name in args["hosts"]}
    warnings: list[str] = []
    if int(args["attempt"]) > 1:
        manifest = run_folders.read_manifest(args["job"], Path(args["runs_dir"]).expanduser())
        packages = manifest.get("packages")
    else:
        folder = script_files.find_script(args["script"], str(args["module"])).folder
        packages = _locked(_environments(hosts), args, folder) if args["requirements"] else None
        warnings = [] if packages else _missing(hosts, folder)
    installs = _installs(_environments(hosts), packages) if packages else {}
    return {"changed": False, "packages": packages, "installs": installs, "warnings": warnings}


def lock_packages_of_machines(play: connections.Play, args: Args) -> dict[str, object]:
    """Lock packages for the machines that setup.yml prepares, so that jobs find them installed.

    The machines are described by results of ``environment_info``. Raise UserError as
    `lock_packages` does.

    Returns:
        ``packages`` and ``installs``; see `lock_packages`.
    """
    environments = {}
    for name in args["machines"]:
        found = reports.described(play.registered(name, args["registered"]))
        environments[name] = _environment(name, str(args["python"]), found["environment"])
    folder = script_files.find_script(args["script"], str(args["module"])).folder
    packages = _locked(environments, args, folder)
    installs = _installs(environments, packages) if packages else {}
    return {"changed": False, "packages": packages, "installs": installs}


def _installs(
    environments: Mapping[str, Environment], packages: Packages
) -> dict[str, dict[str, str]]:
    """Return, for each host that lacks ``packages``, the environment that they extend."""
    return {
        name: {
            "root": environment["root"],
            "framework": environment["framework"],
            "variant": environment["variant"],
        }
        for name, environment in environments.items()
        if packages["name"] not in environment["package_environments"]
    }


def _environments(hosts: FactsByHost) -> dict[str, Environment]:
    """Return the environments by host. Raise UserError if setup.yml did not create one."""
    return {
        name: _environment(name, facts["python"], facts["environment"])
        for name, facts in hosts.items()
    }


def _environment(name: str, python: str, environment: Environment | None) -> Environment:
    if environment is None:
        raise UserError(
            f"{name}: {python} does not belong to an environment created by setup.yml, "
            "which --requirements (train_job_requirements) needs: install the packages "
            "there yourself, or remove train_job_python"
        )
    return environment


def _locked(
    environments: Mapping[str, Environment], args: Args, script_folder: Path
) -> Packages | None:
    """Return the locked packages, or None if the hosts' environments have all of them."""
    asked = requested.read(requested.find(str(args["requirements"]), script_folder))
    pythons: dict[str, list[str]] = {}
    bases: dict[str, Path] = {}
    frameworks: dict[str, list[str]] = {}
    for name, environment in environments.items():
        pythons.setdefault(environment["python_series"], []).append(name)
        base = _base(args, environment)
        if hashlib.sha256(base.read_bytes()).hexdigest() != environment["lock_sha256"]:
            raise UserError(
                f"{name}: the environment in {environment['root']} was installed from a "
                f"different lock than {base}: run "
                f"`{suggestions.command('setup', tags='tensorflow')}` first"
            )
        bases[environment["variant"]] = base
        frameworks.setdefault(environment["framework"], []).append(name)
    if len(frameworks) > 1:
        each = "; ".join(f"{found} on {names_of(hosts)}" for found, hosts in frameworks.items())
        raise UserError(
            f"the hosts' environments are of different frameworks: {each}. Set the same "
            "train_job_framework for all of them, or the same train_job_python"
        )
    send_all = bool(args["send_wheels"])
    lock = locks.make(asked, [*bases.values()], pythons, locks.cache_folder(), send_all=send_all)
    text = lock.requirements.read_bytes()
    if not text:
        return None
    digest = hashlib.sha256(text + "".join(sorted(map(str, bases))).encode())
    for base in bases.values():
        digest.update(base.read_bytes())
    return {
        "name": f"packages-{digest.hexdigest():.12}",
        "requirements": str(asked.path),
        "lock": str(lock.folder),
        "sends_wheels": lock.wheels.is_dir(),
    }


def _base(args: Args, environment: Environment) -> Path:
    own = str(args["tensorflow_requirements"] or "")
    if own and environment["framework"] != "none":
        return Path(args["playbook_dir"], Path(own).expanduser())
    return _LOCKS / _LOCK_NAMES[environment["framework"]].format(environment["variant"])


def _missing(hosts: FactsByHost, script_folder: Path) -> list[str]:
    """Return warnings about modules that hosts are known to lack."""
    lacking: dict[str, list[str]] = {}
    for name, facts in hosts.items():
        for module in facts["missing_modules"] or ():
            lacking.setdefault(module, []).append(name)
    if not lacking:
        return []
    path = requested.next_to(script_folder)
    try:
        asked = requested.read(path) if path else None
    except UserError:
        asked = None
    by_hosts: dict[tuple[str, ...], list[str]] = {}
    for module, names in lacking.items():
        by_hosts.setdefault(tuple(names), []).append(module)
    return [_warning(modules, names, asked) for names, modules in by_hosts.items()]


def _warning(modules: list[str], names: tuple[str, ...], asked: Requested | None) -> str:
    are = "is" if len(modules) == 1 else "are"
    named = f"{' and '.join(modules)} {are} not installed on {names_of(names)}"
    packages = [package_of(module, asked) for module in modules]
    listed = {line.requirement.name for line in asked.packages} if asked else set()
    if asked and listed.issuperset(packages):
        return f"{named}; {asked.path} lists {' and '.join(packages)}: pass --requirements"
    path = asked.path if asked else "requirements.txt next to the script"
    return f"{named}: add {' and '.join(packages)} to {path}, and pass --requirements"


def keep(packages: Packages, run_dir: Path) -> None:
    """Copy a job's lock into its folder, without the wheels."""
    folder = run_dir / PACKAGES_DIR
    folder.mkdir()
    lock = Lock(Path(packages["lock"]))
    for path in (lock.pylock, lock.requirements):
        shutil.copyfile(path, folder / path.name)


def with_packages(hosts: Mapping[str, HostFacts], packages: Packages | None) -> FactsByHost:
    """Return the hosts' facts. ``python`` is that of the environment with ``packages``, if any."""
    if packages is None:
        return hosts
    environments = _environments(hosts)
    pythons = {
        name: f"{environment['root']}/{packages['name']}/bin/python"
        for name, environment in environments.items()
    }
    return {
        name: cast("HostFacts", {**facts, "python": pythons[name]}) for name, facts in hosts.items()
    }
