"""Stages a rank on its host, and unstages it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pkgutil
import shutil
import socket
import tarfile
import time
import zlib
from typing import Any, Dict, List, Mapping, Set, Tuple

from . import json_files, leases, processes, rank_files, ranks, records
from .call_types import CallError, CallResult, Params, for_each_rank
from .processes import read_text
from .suggested import suggest

REMEDY = (
    "stop that job, choose another train_job_port or train_job_gpus, or queue for it (-e "
    "train_job_queue_timeout=SECONDS)"
)
#: Suffix of the folder into which the archive is unpacked.
UNPACKED = ".unpacked"
#: Suffix of the description of the previous attempt.
EARLIER = ".earlier"
#: Seconds to wait for the contents of a claim after its file was created.
CLAIM_WRITE_S = 2.0
#: Seconds after which a claim on an attempt expires if nothing was started.
CLAIM_S = 300.0
#: Seconds after which a staged gang is running.
YOUNG_S = 30.0


class Shared:
    """What the ranks that one call stages have in common. It is read or written only once.

    Args:
        params: parameters of ``stage``.

    Attributes:
        manifest: the contents of ``job.json``.
        archive: the path of the job's archive on this host.
        launcher_dir: the launcher folder of a rank that was staged, or an empty string.
    """

    def __init__(self, params: Params) -> None:
        self.manifest: Dict[str, Any] = json.loads(params["manifest"])
        self.archive = params.get("archive", "")
        if "content" in params:
            held = os.memfd_create("archive")
            os.write(held, base64.b64decode(params["content"]))
            self.archive = "/proc/self/fd/%d" % held
        self._launcher = params["launcher"]
        self.launcher_dir = ""
        self._resolves: Dict[str, bool] = {}
        self._described: Set[str] = set()

    def unresolvable(self, cluster: Mapping[str, List[str]]) -> List[str]:
        """Return the hosts in ``cluster`` (host:port by task type) that cannot be resolved here."""
        addresses = [address for tasks in cluster.values() for address in tasks]
        hosts = sorted({address.rpartition(":")[0].strip("[]") for address in addresses})
        for host in hosts:
            if host not in self._resolves:
                self._resolves[host] = _is_numeric(host) or _resolves(host)
        return [host for host in hosts if not self._resolves[host]]

    def describe(self, job_dir: str) -> None:
        """Write the archive and the description of the attempt into the folder of the job."""
        if job_dir in self._described:
            return
        archive = os.path.join(job_dir, rank_files.ARCHIVE_FILE)
        temporary = "%s.%d" % (archive, os.getpid())  # other ranks of this machine do the same
        shutil.copyfile(self.archive, temporary)
        os.replace(temporary, archive)
        write_description(job_dir, self.manifest)
        self._described.add(job_dir)

    def unpack_launcher(self, folder: str) -> None:
        """Write the launcher into a new folder, or link the files of another rank there."""
        if self.launcher_dir:
            try:
                shutil.copytree(self.launcher_dir, folder, copy_function=os.link)
                return
            except (OSError, shutil.Error):  # another file system, or one without links
                shutil.rmtree(folder, ignore_errors=True)
        source = pkgutil.get_data(str(__package__), rank_files.FAIL_AT_ONCE_FILE)
        assert source is not None
        os.makedirs(folder)
        contents = (
            (rank_files.PROGRAMS_FILE, self._launcher),
            (rank_files.FAIL_AT_ONCE_FILE, source),
        )
        for name, content in contents:
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(content)


def _is_numeric(host: str) -> bool:
    """Return whether a host is given as an IPv4 address, as most hosts of a large cluster are."""
    try:
        return bool(socket.inet_pton(socket.AF_INET, host))
    except (OSError, ValueError):
        return False


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def stage(params: Params, shared: Shared) -> CallResult:
    """Take the rank's port and GPUs, fill its folder, and return ``rank`` and ``warnings``.

    After a CallError, port and GPUs are released, and a newly created folder is removed. In a later
    attempt of the job, remaining processes of the previous attempt are ended and its files are set
    aside. Code, checkpoints, model and events stay.

    Args:
        params: ``archive`` (on the host) or ``content`` (the archive in base64), ``root``,
            ``tf_config``, ``spec`` and ``manifest`` (JSON: the contents of ``rank.json`` and
            ``job.json``), ``readable_by`` (``owner`` or ``all``), ``lease_dir``, ``force`` (restart
            a job that was stopped) and ``launcher`` (the zip archive of train/host, as bytes).
        shared: what this rank has in common with others of the same call.
    """
    spec: records.RankSpec = json.loads(params["spec"])
    check_texts(spec)
    root, lease_dir = rank_files.expand(params["root"]), rank_files.expand(params["lease_dir"])
    # TensorFlow hangs without a message on a name that it cannot resolve.
    missing = shared.unresolvable(json.loads(params["tf_config"])["cluster"])
    if missing:
        raise CallError(
            "this host cannot resolve %s: set train_job_address of those ranks to an "
            "address that every host can resolve" % ", ".join(missing)
        )
    job_dir = os.path.join(root, "jobs", spec["job"])
    try:
        os.makedirs(os.path.dirname(job_dir), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # created by another rank or attempt
            os.mkdir(job_dir, 0o700 if params["readable_by"] == "owner" else 0o755)
        if spec["attempt"] > 1:
            claim(job_dir, shared.manifest)
    except OSError as error:
        raise CallError("%s cannot be created: %s" % (job_dir, error)) from None
    try:
        warnings = take_leases(lease_dir, spec, shared.manifest)
        rank = fill(params, shared, job_dir, spec)
    except BaseException:
        leases.release_rank(spec)
        with contextlib.suppress(OSError):  # it contains files of the job
            os.rmdir(job_dir)
        raise
    return {"changed": True, "rank": rank, "warnings": warnings}


def stage_all(params: Params) -> CallResult:
    """Stage several ranks of this host, see ``stage`` and ``call_types.for_each_rank``."""
    shared = Shared(params)
    return for_each_rank(params, lambda given: stage(given, shared))


def check_texts(spec: records.RankSpec) -> None:
    """Raise CallError if an argument or an environment variable cannot be passed to a process."""
    for number, argument in enumerate(spec["argv"]):
        if not isinstance(argument, str) or "\0" in argument:
            raise CallError(
                "argument %d of the script is not a valid string: quote the argument" % number
            )
    for name, value in spec["environment"].items():
        if not name or "=" in name or "\0" in name:
            raise CallError(
                "train_job_environment contains %r, which is not a valid variable name" % name
            )
        if not isinstance(value, str) or "\0" in value:
            kind = type(value).__name__
            raise CallError(
                "train_job_environment: %s is not a valid string (%s): quote the value"
                % (name, kind)
            )


def claim(job_dir: str, manifest: Mapping[str, Any]) -> None:
    """Claim an attempt for this control node. Raise CallError if another control node has it."""
    attempt, mark = manifest["attempt"], manifest["attempts"][-1]["claim"]
    attach = suggest("attach", job=manifest["job"])
    overtaken = "another control node already started attempt %d of job %s: follow it with `%s`"
    states = [ranks.observe(rank_dir) for rank_dir in ranks.in_job(job_dir)]
    alive = {s.get("attempt") for s in states if s["phase"] in records.ALIVE_PHASES}
    job_file = os.path.join(job_dir, rank_files.JOB_FILE)
    stored = json_files.read_whole(job_file) or {"attempt": 0, "attempts": manifest["attempts"]}
    claims = {a["claim"] for a in manifest["attempts"]}
    if stored["attempt"] > attempt or (
        stored["attempts"][-1].get("claim") not in claims
        and (stored["attempt"] in alive or time.time() - os.stat(job_file).st_mtime < YOUNG_S)
    ):
        raise CallError(overtaken % (stored["attempt"], manifest["job"], attach), overtaken=True)
    path = os.path.join(job_dir, rank_files.CLAIM_FILE % attempt)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        claimed_at = os.stat(path).st_mtime
        # The process that created the file also writes it.
        processes.wait_until(lambda: read_text(path), CLAIM_WRITE_S, pause=0.02)
        if read_text(path) == mark:
            return  # another rank of this machine was first
        if attempt in alive or time.time() - claimed_at < CLAIM_S:
            raise CallError(
                overtaken % (attempt, manifest["job"], attach), overtaken=True
            ) from None
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(mark)


def take_leases(folder: str, spec: records.RankSpec, manifest: Mapping[str, Any]) -> List[str]:
    """Take the rank's port and GPUs, add the leases to ``spec``, and return warnings.

    Raise CallError if another job has one of them, or if this job was stopped. A ``folder`` that
    cannot be used causes only a warning, because another user may be responsible.
    """
    created_at = manifest["created_at"]
    gpus = manifest["hosts"][spec["host"]]["gpus"]
    resources = leases.wanted(spec["port"], spec["gpus"], gpus)
    spec["leases"] = {"created_at": created_at, "resources": resources, "folder": folder}
    try:
        seconds = leases.seconds_until_start(spec)
        leases.take(folder, resources, leases.holder_of(spec), seconds)
    except leases.HeldError as error:
        raise CallError("%s: %s" % (error, REMEDY)) from None
    except leases.StoppedError as error:
        raise CallError("the job %s" % error, stopped=str(error)) from None
    except leases.LeaseError as error:
        return [
            "the rank is running without leases, which prevent conflicts between jobs: %s" % error
        ]
    return []


def fill(params: Params, shared: Shared, job_dir: str, spec: records.RankSpec) -> records.RankInfo:
    """Fill the rank's folder and return the record of the rank.

    If the disk or the archive causes an error in the first attempt, the folder is removed.
    """
    rank_dir = os.path.join(job_dir, spec["task"])
    spec["results_dir"] = os.path.join(job_dir, spec["results_dir"])
    spec["machine"] = processes.machine()
    spec["checkpoint_dir"] = os.path.expanduser(os.path.expandvars(spec["checkpoint_dir"]))
    again = spec["attempt"] > 1
    launcher_dir = os.path.join(rank_dir, rank_files.LAUNCHER_DIR)
    try:
        os.makedirs(rank_dir, mode=0o755, exist_ok=again)
    except FileExistsError:
        raise CallError("%s already exists: choose another train_job_id" % rank_dir) from None
    except OSError as error:
        raise CallError("%s cannot be created: %s" % (rank_dir, error)) from None
    try:
        if not os.path.isdir(launcher_dir):
            unpack(shared, rank_dir)
            shared.launcher_dir = launcher_dir
        if again:
            earlier = earlier_environment(job_dir, spec)
            spec["environment"] = {**earlier, **spec["environment"]}
            check_environment(spec["environment"], shared.manifest)
            end_earlier(job_dir, rank_dir, spec["host"], shared.manifest)
        if params["force"]:
            with contextlib.suppress(FileNotFoundError):  # another rank of this machine was first
                os.unlink(os.path.join(job_dir, rank_files.STOP_REQUEST_FILE))
        shared.describe(job_dir)
        tf_config = json.loads(params["tf_config"])
        json_files.write_json(os.path.join(rank_dir, rank_files.TF_CONFIG_FILE), tf_config)
        json_files.write_json(os.path.join(rank_dir, rank_files.RANK_FILE), spec, mode=0o600)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        if not again:
            shutil.rmtree(rank_dir + UNPACKED, ignore_errors=True)
            shutil.rmtree(rank_dir, ignore_errors=True)
        what = "write to" if isinstance(error, OSError) else "unpack the code in"
        raise CallError("cannot %s %s: %s" % (what, rank_dir, error)) from None
    return ranks.identify(rank_dir, spec)


def write_description(job_dir: str, manifest: Mapping[str, Any]) -> None:
    """Write the ``job.json`` of an attempt, and keep a copy of the previous attempt's."""
    path = os.path.join(job_dir, rank_files.JOB_FILE)
    known = json_files.read_whole(path)
    if known is not None and known.get("attempt", 0) < manifest["attempt"]:
        json_files.write_json(path + EARLIER, known)
    json_files.write_json(path, manifest)


def unpack(shared: Shared, folder: str) -> None:
    """Unpack the job's archive and the launcher into ``folder``.

    The launcher is moved there last, so its presence shows that the folder is complete.
    """
    temporary = folder + UNPACKED
    shutil.rmtree(temporary, ignore_errors=True)
    with tarfile.open(shared.archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(temporary, filter="data")
        else:
            tar.extractall(temporary)  # created by this project's control node
    shared.unpack_launcher(os.path.join(temporary, rank_files.LAUNCHER_DIR))
    for name in sorted(os.listdir(temporary)):  # launcher last, as the mark of a complete folder
        os.replace(os.path.join(temporary, name), os.path.join(folder, name))
    os.rmdir(temporary)


def earlier_environment(job_dir: str, spec: records.RankSpec) -> Dict[str, str]:
    """Return the script's environment from an earlier attempt.

    A control node that has attached does not know this environment. It is that of a rank with the
    same inventory host, or else of a rank with the same task, or else of any rank.
    """
    found = [earlier for earlier in map(ranks.specification, ranks.in_job(job_dir)) if earlier]

    def nearness(earlier: records.RankSpec) -> Tuple[bool, bool]:
        return earlier.get("host") == spec["host"], earlier.get("task") == spec["task"]

    return dict(max(found, key=nearness)["environment"]) if found else {}


def check_environment(environment: Mapping[str, str], manifest: Mapping[str, Any]) -> None:
    """Refuse to start a script without environment variables that it had in earlier attempts.

    Raise CallError if the values of such variables are unknown: this host has no earlier attempt,
    and the control node has attached without the variables.
    """
    differs = manifest.get("environment_differs") or ()
    names = {*(manifest.get("environment_names") or ())} - {*differs, *environment}
    if names:
        raise CallError(
            "the job was started with %s in train_job_environment, but neither this host nor "
            "this control node knows the value: attach again with the same train_job_environment"
            % ", ".join(sorted(names))
        )


def end_earlier(job_dir: str, rank_dir: str, host: str, manifest: Mapping[str, Any]) -> None:
    """End the remaining processes of an earlier attempt, and set the files of the rank aside.

    The processes may belong to other ranks of the inventory host, or to ranks that were started on
    its machine under other names. Raise CallError if a process cannot be killed.
    """
    facts = manifest["hosts"]
    # Other ranks of this attempt on this machine handle their own folders.
    theirs = {
        os.path.join(job_dir, rank["task"])
        for rank in manifest["ranks"]
        if facts[rank["host"]]["machine"] == facts[host]["machine"]
    }
    root, job = os.path.dirname(os.path.dirname(job_dir)), os.path.basename(job_dir)
    found = ranks.find(root, host, job, names=list(facts))
    for folder in {*found, rank_dir} - (theirs - {rank_dir}):
        left = ranks.stop(folder, 1.0, "was stopped for another attempt")["remaining"]
        if left:
            raise CallError("processes %s of an earlier attempt could not be killed" % left)
    ranks.set_aside(rank_dir)


def remove_unstarted(job_dir: str, task: str, created_at: float) -> None:
    """Remove the folder of a rank that was never started, and the job's if it has no other ranks.

    Do nothing if ``created_at`` shows that the folder belongs to another job with the same name.
    """
    rank_dir = os.path.join(job_dir, task)
    spec = json_files.read_whole(os.path.join(rank_dir, rank_files.RANK_FILE)) or {}
    own = (spec.get("leases") or {}).get("created_at") == created_at
    if not own or ranks.observe(rank_dir)["phase"] != records.ABSENT:
        return
    shutil.rmtree(rank_dir)
    with contextlib.suppress(FileNotFoundError):  # another rank of this machine does the same
        if not any(entry.is_dir() for entry in os.scandir(job_dir)):
            shutil.rmtree(job_dir)


def undo(job_dir: str, task: str, attempt: int) -> None:
    """Restore the files of a rank and its job as they were before ``attempt`` was staged."""
    if os.path.isdir(os.path.join(job_dir, task)):
        ranks.put_back(os.path.join(job_dir, task), attempt)
    path = os.path.join(job_dir, rank_files.JOB_FILE)
    if (json_files.read_whole(path) or {}).get("attempt") == attempt:
        with contextlib.suppress(FileNotFoundError):  # another rank of this machine does the same
            os.replace(path + EARLIER, path)


def unstage(params: Params) -> CallResult:
    """Release the leases of a rank that has not started, and its place in the queue.

    In the job's first attempt, the rank's folder is removed. In a later attempt, the folder is
    restored to its state after the previous one. Always raise CallError, so that the play ends.

    Args:
        params: ``root``, ``lease_dir``, ``job``, ``task``, ``attempt``, ``created_at`` and
            ``claim`` (both as in the manifest).
    """
    job, task, attempt = str(params["job"]), str(params["task"]), int(params["attempt"])
    created_at = float(params["created_at"])
    result = "the job's leases were released"
    job_dir = os.path.join(rank_files.expand(params["root"]), "jobs", job)
    path = os.path.join(job_dir, rank_files.CLAIM_FILE % attempt)
    try:
        if attempt == 1:
            remove_unstarted(job_dir, task, created_at)
        elif not os.path.exists(path) or read_text(path) == params["claim"]:
            undo(job_dir, task, attempt)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        else:
            raise CallError(
                "nothing was started: the attempt belongs to another control node", released=False
            )
    except FileNotFoundError:
        pass  # another rank of this machine does the same
    except OSError as error:
        result = "the rank's folder was not removed: %s" % error
    holder = leases.Holder(created_at, job, task, attempt)
    leases.give_back(rank_files.expand(params["lease_dir"]), holder)
    raise CallError("nothing was started, and %s" % result, released=True)
