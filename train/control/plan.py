"""What is settled on the control node before a gang starts: ranks, code, manifest.

Pure functions over what the hosts said, used by the action plugin ``train_plan``. Standard library
only: it runs under whatever Python Ansible runs under.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.host import records

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = REPOSITORY / "train" / "worker.py"
IGNORE_FILE = ".trainignore"
#: Left out of every staged folder.
IGNORED = (
    ".git",
    "__pycache__",
    "*.pyc",
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
)
#: What the supervisor and the watch need on a host, of train/host.
LAUNCHER = (
    "__init__.py",
    "console.py",
    "news.py",
    "processes.py",
    "ranks.py",
    "records.py",
    "supervisor.py",
)
#: The least value of each numeric variable of the role train_job.
LEAST = {
    "train_job_code_limit_mb": 1,
    "train_job_end_timeout": 0,
    "train_job_failure_grace": 0,
    "train_job_grace": 0,
    "train_job_max_runtime": 0,
    "train_job_min_free_mb": 0,
    "train_job_news_interval": 0,
    "train_job_start_timeout": 1,
    "train_job_unreachable_timeout": 1,
}


class PlanError(Exception):
    """The job cannot start; the message is for the user."""


@dataclass(frozen=True)
class Rank:
    """One task of the job and where it runs.

    Attributes:
        host: the inventory host.
        task: such as ``worker-0``.
        port: its TCP port; None where TensorFlow opens none.
        service: it serves those that train, and counts for nothing once they are done: a parameter
            server, a worker beside one, an evaluator.
        ranks_on_machine: how many ranks of the job share its machine.
        gpus: those that it sees, by index or UUID; None where its environment is left alone.
    """

    host: str
    task: str
    type: str
    index: int
    port: int | None
    service: bool
    ranks_on_machine: int
    gpus: tuple[str, ...] | None = None


def check_variables(variables: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse variables of the role that do not exist, and numbers below their limit.

    Args:
        variables: all variables of a host, and the numbers of the job.
        known: the role's variables.

    Raises:
        PlanError: names the variable and the limit, or the nearest variable that exists.
    """
    known = sorted(known)
    for name in variables:
        if name.startswith("train_job_") and name not in known:
            near = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise PlanError(f"there is no variable {name}: {hint}")
    for name, least in LEAST.items():
        value = variables.get(name)
        if value is not None and float(value) < least:
            raise PlanError(f"{name} is {value}, the limit is {least} or more")


def plan_ranks(
    groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]
) -> list[Rank]:
    """Return the ranks of the gang, chief first.

    Args:
        groups: the inventory hosts of each task type, in the order of their indices.
        hosts: what ``rank_preflight`` said of every inventory host.

    Raises:
        PlanError: no rank that trains, a host in two groups, more chiefs or evaluators than one,
            two ranks with one address and port, different versions of TensorFlow.
    """
    members = [(kind, host) for kind in records.TASK_TYPES for host in groups.get(kind, ())]
    if not groups.get("worker") and not groups.get("chief"):
        raise PlanError("the inventory has no host in the groups chief and worker: add one")
    for host, count in Counter(host for _, host in members).items():
        if count > 1:
            kinds = " and ".join(kind for kind, name in members if name == host)
            raise PlanError(
                f"host {host} is in the groups {kinds}: one inventory host is one rank; give the "
                "second rank an inventory host of its own with the same ansible_host"
            )
    for kind in ("chief", "evaluator"):
        if len(groups.get(kind, ())) > 1:
            named = ", ".join(groups[kind])
            raise PlanError(f"group {kind} has {named}: TensorFlow takes at most one {kind}")
    _check_ports(members, hosts)
    _check_versions(hosts)

    cluster_size = sum(kind != "evaluator" for kind, _ in members)
    served = bool(groups.get("ps"))
    machines = Counter(hosts[host]["machine"] for _, host in members)
    return [
        Rank(
            host=host,
            task=f"{kind}-{groups[kind].index(host)}",
            type=kind,
            index=groups[kind].index(host),
            port=hosts[host]["port"] if kind != "evaluator" and cluster_size > 1 else None,
            service=kind in ("ps", "evaluator") or (served and kind == "worker"),
            ranks_on_machine=machines[hosts[host]["machine"]],
        )
        for kind, host in members
    ]


def _check_ports(
    members: Sequence[tuple[str, str]], hosts: Mapping[str, Mapping[str, Any]]
) -> None:
    taken: dict[tuple[str, int], str] = {}
    for kind, host in members:
        if kind == "evaluator":
            continue
        for place in (hosts[host]["address"], hosts[host]["machine"]):
            other = taken.setdefault((place, hosts[host]["port"]), host)
            if other != host:
                raise PlanError(
                    f"{other} and {host} are two ranks with one address and port, "
                    f"{hosts[host]['address']}:{hosts[host]['port']}: give each a train_job_port "
                    "of its own"
                )


def _check_versions(hosts: Mapping[str, Mapping[str, Any]]) -> None:
    versions: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        if facts["tensorflow"] is not None:
            versions.setdefault(facts["tensorflow"], []).append(host)
    if len(versions) > 1:
        found = "; ".join(f"{v} on {', '.join(names)}" for v, names in sorted(versions.items()))
        raise PlanError(
            f"the hosts have different versions of TensorFlow ({found}): run playbooks/setup.yml"
        )


def choose_job(job: str, script: Path, runs_dir: Path) -> tuple[str, Path]:
    """Return the job's id and its new, empty folder on the control node.

    Args:
        job: the id asked for; empty to have one made from the script's name and the time.

    Raises:
        PlanError: the id is malformed, or its folder holds an earlier run.
    """
    if job:
        if not records.JOB_PATTERN.fullmatch(job):
            raise PlanError(
                f"train_job_id {job!r} is no job id: use 1 to 64 letters, digits, '.', '_' or '-', "
                "the first a letter or digit"
            )
        run_dir = runs_dir / job
        if (run_dir / "manifest.json").exists():
            raise PlanError(
                f"{run_dir} holds job {job} already, running or ended: attach to it, or choose "
                "another id (--job, train_job_id)"
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        return job, run_dir
    stem = re.sub(r"[^A-Za-z0-9]+", "-", script.stem).strip("-")[:40] or "job"
    while True:
        job = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            (runs_dir / job).mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.2)
            continue
        return job, runs_dir / job


def find_script(script: str) -> tuple[Path, str]:
    """Return the folder to stage and the file in it to run.

    A file is staged with its neighbours. In a directory, ``main.py`` or ``__main__.py`` is run, or
    the only Python file there.

    Raises:
        PlanError: there is no such script, it is not one, or it lies in a home directory.
    """
    path = Path(script).expanduser().resolve()
    if path.is_dir():
        folder = path
        names = [name for name in ("main.py", "__main__.py") if (path / name).is_file()]
        names = names or [found.name for found in sorted(path.glob("*.py"))]
        if not names:
            raise PlanError(f"{path} holds no Python file: name the script to run")
        if len(names) > 1 and names[0] not in ("main.py", "__main__.py"):
            raise PlanError(
                f"{path} holds several Python files and no main.py: name the one to run"
            )
        entry = names[0]
    elif path.is_file():
        folder, entry = path.parent, path.name
    else:
        raise PlanError(
            f"there is no script {path}: --script and train_job_script take a file or a directory "
            "of this control node"
        )
    if _is_common(folder):
        raise PlanError(
            f"{path} lies in {folder}, and a script is sent with its neighbours: move it to a "
            "directory of its own"
        )
    return folder, entry


def _is_common(folder: Path) -> bool:
    """Tell whether a folder holds much that belongs to no job: a home directory or above, /tmp."""
    return Path.home().is_relative_to(folder) or folder == Path("/tmp")


def find_includes(include: str | Sequence[str]) -> list[Path]:
    """Return the files and folders to stage beside the script, as absolute paths.

    Raises:
        PlanError: one does not exist, is a home directory, or two have the same base name.
    """
    found: dict[str, Path] = {}
    for text in [include] if isinstance(include, str) else include:
        # A link keeps its own name, which resolve() would take away; what it leads to is sent.
        path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100
        if not path.is_file() and not path.is_dir():
            raise PlanError(
                f"there is no file or folder {path}: --include and train_job_include take those of "
                "this control node"
            )
        if path.is_dir() and _is_common(path.resolve()):
            raise PlanError(
                f"{path} is not to be included as a whole (--include, train_job_include): name "
                "what is needed of it"
            )
        other = found.setdefault(path.name, path)
        if other != path:
            raise PlanError(
                f"{other} and {path} would both be staged as {path.name} (--include, "
                "train_job_include): rename one"
            )
    return list(found.values())


def staged_files(folder: Path, extra: Sequence[str] = ()) -> Iterator[tuple[Path, str]]:
    """Yield every file to stage with its path relative to ``folder``, in a stable order.

    Args:
        extra: patterns to leave out, besides those of ``.trainignore`` and the usual ones. A
            pattern is matched against each name and against the relative path.
    """
    patterns = [*IGNORED, *extra]
    ignore = folder / IGNORE_FILE
    if ignore.is_file():
        lines = ignore.read_text(encoding="utf-8").splitlines()
        patterns += [line.strip().rstrip("/") for line in lines if line.strip()[:1] not in "#"]
    for parent, names, files in os.walk(folder):
        base = Path(parent).relative_to(folder)

        def kept(name: str, base: Path = base) -> bool:
            path = (base / name).as_posix()
            return not any(
                fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path, pattern)
                for pattern in patterns
            )

        names[:] = sorted(filter(kept, names))
        for name in sorted(filter(kept, files)):
            path = Path(parent) / name
            if path.is_file():
                yield path, (base / name).as_posix()


def code_files(
    folder: Path,
    include: Sequence[Path] = (),
    *,
    exclude: Sequence[str] = (),
    limit_mb: float = 100,
) -> list[tuple[Path, str]]:
    """Return every file that goes into ``code/``, with its path there.

    Links are followed, so that what they name is sent.

    Args:
        folder: the script's.
        include: files and folders that are staged beside it, under their own base names.
        exclude: patterns to leave out, besides those of each folder's ``.trainignore``.
        limit_mb: the most that the files may come to, in MiB, before compression.

    Raises:
        PlanError: an included name is taken already or holds nothing, or all together is larger
            than ``limit_mb``; the largest parts are named.
    """
    code = list(staged_files(folder, exclude))
    taken = {name.split("/")[0] for _, name in code}
    for path in include:
        if path.name in taken:
            raise PlanError(
                f"{path} cannot be included as {path.name}: the script's folder {folder} is staged "
                "with something of that name; rename it"
            )
        if path.is_dir():
            inner = [(file, f"{path.name}/{name}") for file, name in staged_files(path, exclude)]
        else:
            inner = [(path, path.name)]
        if not inner:
            raise PlanError(f"{path} is to be included, and holds no file to stage")
        code += inner
    sizes: Counter[str] = Counter()
    for path, name in code:
        sizes[name.split("/")[0]] += path.stat().st_size
    total_mb = sizes.total() / 2**20
    if total_mb > limit_mb:
        largest = ", ".join(f"{n} ({size / 2**20:.0f} MiB)" for n, size in sizes.most_common(3))
        what = f"{folder} with what is included" if include else f"{folder}"
        raise PlanError(
            f"{what} comes to {total_mb:.0f} MiB, the limit is {limit_mb:g} MiB "
            f"(train_job_code_limit_mb); the largest: {largest}. Name what is not needed in "
            f"{folder / IGNORE_FILE}"
        )
    return code


def pack(code: Sequence[tuple[Path, str]], archive: Path) -> str:
    """Write the archive that every rank unpacks: ``code/`` and ``launcher/``.

    Args:
        code: what ``code_files`` returned.

    Returns:
        The SHA-256 of the names and contents, in hex.
    """
    launcher = [(REPOSITORY / "train/host" / name, f"launcher/host/{name}") for name in LAUNCHER]
    digest = hashlib.sha256()
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as tar:
        for path, name in [(path, f"code/{name}") for path, name in code] + launcher:
            tar.add(path, name, recursive=False)
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def check_arguments(
    script: Path, code: Sequence[tuple[Path, str]], arguments: Sequence[str], tf_config: str
) -> None:
    """Have the project's own training program check its arguments, here and without TensorFlow.

    Its working directory is laid out as ``code/`` will be on the hosts, of links: a file or module
    that an option names is looked up among what is staged, and nowhere else. Scripts of users are
    not started on the control node.

    Args:
        code: what ``code_files`` returned.

    Raises:
        PlanError: an option is unknown or its value is wrong.
    """
    if script.resolve() != WORKER:
        return
    with tempfile.TemporaryDirectory(prefix="train-check-") as folder:
        for path, name in code:
            link = Path(folder, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        done = subprocess.run(
            [sys.executable, str(WORKER), "--check", *arguments],
            cwd=folder,
            # It runs from its own folder; on a host it lies beside what is included.
            env={**os.environ, "PYTHONPATH": folder, "TF_CONFIG": tf_config},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise PlanError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return ``commit`` and ``clean`` of the git work tree that holds ``folder``, None if none."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "clean": not git("status", "--porcelain")}
    except (OSError, subprocess.CalledProcessError):
        return None


def tf_config(cluster: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return TF_CONFIG of ``rank``, as the role's template renders it on its host."""
    return {"cluster": dict(cluster), "task": {"type": rank.type, "index": rank.index}}


def write_manifest(
    run_dir: Path,
    *,
    job: str,
    script: Path,
    include: Sequence[Path],
    arguments: Sequence[str],
    cluster: Mapping[str, Any],
    ranks: Sequence[Rank],
    hosts: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    code_sha256: str,
    ansible_version: str,
) -> None:
    """Write ``manifest.json``: all that is needed to run the job again; see docs/formats.md."""
    records.write_json(
        str(run_dir / "manifest.json"),
        {
            "version": records.FORMAT_VERSION,
            "job": job,
            "created_at": round(time.time(), 3),
            "script": str(script),
            "include": [str(path) for path in include],
            "arguments": list(arguments),
            "code_sha256": code_sha256,
            "git": git_state(script.parent),
            "versions": {
                "python": platform.python_version(),
                "ansible_core": ansible_version,
                "tensorflow": sorted({f["tensorflow"] for f in hosts.values() if f["tensorflow"]}),
            },
            "hosts": {host: dict(facts) for host, facts in hosts.items()},
            "ranks": [asdict(rank) for rank in ranks],
            "tf_config": {rank.task: tf_config(cluster, rank) for rank in ranks},
            **settings,
        },
    )


def cluster_of(text: str) -> dict[str, Any]:
    """Return the cluster part of TF_CONFIG that the template rendered.

    Raises:
        PlanError: it is no JSON object.
    """
    try:
        cluster = json.loads(text)
    except ValueError as error:
        raise PlanError(f"the cluster template rendered no JSON: {error}") from error
    if not isinstance(cluster, dict):
        raise PlanError("the cluster template rendered no JSON object")
    return cluster
