"""Records in the files that host and control node exchange, described in docs/formats.md."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from .plain_text import is_number
from .progress_records import Progress

FORMAT_VERSION = 1

#: Phases of ``state.json``. The first two are alive, the others final.
STARTING = "starting"
RUNNING = "running"
COMPLETED = "completed"
FAILED = "failed"
STOPPED = "stopped"
ALIVE_PHASES = (STARTING, RUNNING)
FINAL_PHASES = (COMPLETED, FAILED, STOPPED)
#: Phase of a rank whose folder has no state yet.
ABSENT = "absent"

#: The task types of TensorFlow, in the order in which ranks are listed.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")
JOB_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TASK_PATTERN = re.compile(r"(?:%s)-(?:0|[1-9][0-9]{0,4})" % "|".join(TASK_TYPES))


class HeldLeases(TypedDict):
    """The leases of a rank: their folder, and the resources with readable names."""

    folder: str
    created_at: float
    resources: Dict[str, str]


class RankSpec(TypedDict):
    """The contents of ``rank.json``, which describe a rank for its supervisor."""

    version: int
    job: str
    task: str
    host: str
    machine: str  # the machine where it was staged, as in HostFacts
    attempt: int
    results_dir: str
    checkpoint_copy: bool
    checkpoint_dir: str
    port: Optional[int]
    non_training: bool
    ranks_on_machine: int
    gpus: Optional[List[str]]
    visible_gpus: Optional[List[str]]  # for CUDA_VISIBLE_DEVICES; None to leave it unset
    framework: str  # see frameworks.py
    rank_environment: Dict[str, str]  # the variables by which the rank finds the others
    python: str
    argv: List[str]
    collect: List[str]
    environment: Dict[str, str]
    keras: int
    seed: int
    start_timeout: int
    start_idle_timeout: int
    start_wait_timeout: int
    max_runtime: int
    hang_factor: float
    hang_min_seconds: float
    exit_timeout: float
    grace: float
    preemption: str  # train_job_preemption
    log_limit: int
    leases: HeldLeases


class _Preemption(TypedDict):
    source: str  # see preemption.py and metadata.py
    at: float


class Preemption(_Preemption, total=False):
    """A notice that a rank's host will be reclaimed."""

    seconds: float  # from the notice to the end of the host; absent if unknown


class LeftFiles(TypedDict):
    """Files that look like results, in the folder where a script ran."""

    count: int
    bytes: int
    names: List[str]  # names of some of them, relative to that folder


class RankState(TypedDict, total=False):
    """The contents of ``state.json``. Fields except ``phase`` are absent until they are known."""

    version: int
    job: str
    task: str
    attempt: int
    port: Optional[int]
    phase: str
    boot_id: str
    init_start: Optional[int]
    started_at: float
    running_at: float
    ended_at: float
    supervisor_pid: int
    supervisor_start: Optional[int]
    watchdog_pid: int
    watchdog_start: Optional[int]
    pid: int
    pid_start: Optional[int]
    sessions: Dict[str, Optional[int]]
    exit_code: Optional[int]
    cause: Optional[str]
    reason: str
    step: Optional[int]
    frozen: bool
    preemption: Preemption
    at_risk: bool  # whether its cloud recommends to leave the host, which may stay
    stuck_in_framework: bool
    alone: bool
    at_work: List[str]
    checkpoint_found: bool  # whether any file was in TRAIN_CHECKPOINT_DIR when the script started
    left_files: LeftFiles
    lingering: List[str]
    lingering_s: float
    left_out: Dict[str, List[int]]  # for "log" and "progress": the hole, see limited.Hole


class StopReport(TypedDict):
    """The result of stopping a rank."""

    was: str  # its phase before
    phase: str
    ended: int  # number of processes of the script that have ended
    remaining: List[int]  # processes that could not be ended
    port: Optional[int]
    # None without GPUs, if unknown, and for a rank that had ended before.
    port_free: Optional[bool]
    gpu_memory_free: Optional[bool]  # whether the driver lists none of its processes
    given_back: int  # released leases and places in the queue, of ranks that had not started


class _Position(TypedDict):
    phase: str
    frozen: bool
    log: int
    progress: int
    supervisor: int


class Cursor(_Position, total=False):
    """The position up to which a rank was fetched: its phase, and a byte offset in each file."""

    answer: int  # maximum bytes of all files in the next answer
    preempted: bool  # whether a notice of preemption was reported
    measured: float  # time of the last report of the load, in seconds of the host's clock


class _Update(TypedDict):
    state: RankState
    log: str
    progress: str
    supervisor: str
    cursor: Cursor
    more: bool  # there is more to read at once
    age: Optional[float]  # seconds since the last progress or log line; None if there is none
    now: float  # the host's clock
    load: Dict[str, Any]  # see load.facts; empty unless the rank runs and a report is due


class Update(_Update, total=False):
    """An update about a rank: new text of its files since the last cursor, and the next cursor.

    The fields in this class are missing if an earlier version of the launcher started the job.
    """

    left: Dict[str, int]  # bytes of each file after the cursor, without its hole
    sizes: Dict[str, int]  # bytes of each file
    last: str  # the end of the log, if it is longer than the text in this update


class Probed(TypedDict):
    """The results of a host's check of its network paths to other ranks, see probe.py."""

    reached: Dict[str, str]  # for each peer one of the results in probe.py
    listening: bool  # whether the rank's own port is bound
    own: bool  # whether its address belongs to this host
    addresses: List[str]  # the addresses of this host
    proxy: str  # see probe.proxy


class RankInfo(TypedDict):
    """The control node's record of a rank."""

    job: str
    task: str
    attempt: int
    rank_dir: str
    results_dir: str
    port: Optional[int]
    non_training: bool
    host_python: str
    place: str  # the same for all ranks that one process can observe


class ListedRank(RankInfo):
    """A rank in a job listing."""

    host: Optional[str]
    key: str  # the same for all machines that see the folder
    phase: str
    reason: str
    started_at: Optional[float]
    ended_at: Optional[float]
    idle: float  # seconds since its last activity
    processes: int  # number of its processes
    progress: Progress  # its last step and epoch
    log_from: int  # offset of the requested lines of its log, in bytes


class ListedManifest(TypedDict):
    """The summary of ``job.json`` in a job listing."""

    attempt: int
    created_at: float
    tasks: Dict[str, str]  # the inventory host of each rank of that attempt
    hosts: List[str]  # the hosts of all attempts
    restarts: int  # number of restarts that may follow


class ListedJob(TypedDict):
    """A job in a job listing."""

    job: str
    size: Optional[int]  # bytes on the disk; None if not measured
    manifest: Optional[ListedManifest]
    ranks: List[ListedRank]


def task_order(task: str) -> Tuple[int, int]:
    """Return the sort key of a task such as ``worker-10``: by type (TASK_TYPES), then by index."""
    kind, _, index = task.partition("-")
    place = TASK_TYPES.index(kind) if kind in TASK_TYPES else len(TASK_TYPES)
    return place, int(index) if is_number(index) else 0


def restarts_made(manifest: Mapping[str, Any]) -> int:
    """Return how often a job was restarted without a user since a user last started it.

    Attempts that were never staged do not count, nor those with which a job grew, or left a host
    that was preempted.
    """
    known = manifest["attempts"]
    last = max((n for n, one in enumerate(known) if one.get("requested")), default=0)
    attempts = [
        one
        for one in known[last:]
        if one["staged"] and not (one.get("grown") or one.get("preempted"))
    ]
    return max(0, len(attempts) - 1)
