"""Records in the files that host and control node exchange, described in docs/formats.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, TextIO, Tuple, TypedDict, Union

FORMAT_VERSION = 1

#: Environment variables of a rank's process.
ENV_JOB = "TRAIN_JOB"
ENV_RANK_DIR = "TRAIN_RANK_DIR"
ENV_PROGRESS = "TRAIN_PROGRESS_FILE"
ENV_MODEL_DIR = "TRAIN_MODEL_DIR"
ENV_CHECKPOINT_DIR = "TRAIN_CHECKPOINT_DIR"
ENV_TENSORBOARD_DIR = "TRAIN_TENSORBOARD_DIR"
ENV_SEED = "TRAIN_SEED"
ENV_START_TIMEOUT = "TRAIN_START_TIMEOUT"
ENV_ATTEMPT = "TRAIN_ATTEMPT"
ENV_CHECKPOINT_COPY = "TRAIN_CHECKPOINT_COPY"
#: All of them; they are expanded in arguments of the script.
OWN_VARIABLES = frozenset(
    (
        *(ENV_JOB, ENV_RANK_DIR, ENV_PROGRESS, ENV_MODEL_DIR, ENV_CHECKPOINT_DIR),
        *(ENV_TENSORBOARD_DIR, ENV_SEED, ENV_START_TIMEOUT, ENV_ATTEMPT, ENV_CHECKPOINT_COPY),
    )
)

#: The variable from which TensorFlow reads gRPC's options, and its value for a rank. It disables
#: web proxies, through which gRPC would send the ranks' messages and hang. Connections to a peer
#: that is not up yet are tried again after 0.1 s, then at most every 0.3 s (by default after 1 s,
#: increasing).
ENV_GRPC = "TF_GRPC_DEFAULT_OPTIONS"
GRPC_OPTIONS = (
    "grpc.enable_http_proxy=0,"
    "grpc.initial_reconnect_backoff_ms=100,"
    "grpc.max_reconnect_backoff_ms=300"
)

#: The variable from which glibc (2.35 or newer) reads its allocator's options, and its value for a
#: rank. By default, memory that a step frees is returned to the kernel, and the next step gets it
#: back page by page, which takes up to half of a step's time on CPUs. The value enables huge pages
#: if the kernel provides them on request, and keeps freed memory in the process. It limits the
#: number of arenas to two, because each arena keeps its own memory.
ENV_MALLOC = "GLIBC_TUNABLES"
MALLOC_OPTIONS = (
    "glibc.malloc.hugetlb=1:"
    "glibc.malloc.arena_max=2:"
    "glibc.malloc.top_pad=67108864:"
    "glibc.malloc.mmap_threshold=1073741824:"
    "glibc.malloc.trim_threshold=1073741824"
)

RANK_FILE = "rank.json"
TF_CONFIG_FILE = "tf_config.json"
STATE_FILE = "state.json"
PROGRESS_FILE = "progress.jsonl"
LOG_FILE = "stdout.log"
STACKS_FILE = "stacks.txt"
SUPERVISOR_LOG_FILE = "supervisor.log"
CODE_DIR = "code"
LAUNCHER_DIR = "launcher"
ATTEMPTS_DIR = "attempts"
JOB_FILE = "job.json"
#: Marks the control node that has planned an attempt after the first.
CLAIM_FILE = "attempt-%d.claim"
TOLD_TO_STOP_FILE = "stopped.json"
ARCHIVE_FILE = "code.tar.gz"
MODEL_DIR = "model"
CHECKPOINT_DIR = "checkpoints"
TENSORBOARD_DIR = "tensorboard"

#: Phases of ``state.json``. The first two are alive, the others final.
STARTING = "starting"
RUNNING = "running"
COMPLETED = "completed"
FAILED = "failed"
STOPPED = "stopped"
ALIVE_PHASES = (STARTING, RUNNING)
FINAL_PHASES = (COMPLETED, FAILED, STOPPED)

#: The task types of TensorFlow, in the order in which ranks are listed.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")

JOB_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TASK_PATTERN = re.compile(r"(?:%s)-(?:0|[1-9][0-9]{0,4})" % "|".join(TASK_TYPES))

#: Limits of one progress record: characters, metrics, and the size of a number.
MAX_LINE = 65_536
MAX_NAME = 100
MAX_TEXT = 500
MAX_METRICS = 200
MAX_NUMBER = 1e300
MAX_COUNT = 2**53
#: Texts for NaN and infinities, which strict JSON does not support.
NOT_FINITE = ("NaN", "Infinity", "-Infinity")

#: Terminal escape sequences, and characters that control a terminal or the direction of text.
_ESCAPES = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?|[ -/]*[0-~])?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class HeldLeases(TypedDict):
    """The leases of a rank: their folder, and the resources with readable names."""

    folder: str
    created_at: float
    resources: Dict[str, str]


class RankSpec(TypedDict):
    """``rank.json``: what a supervisor runs."""

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
    log_limit: int
    leases: HeldLeases


class LeftFiles(TypedDict):
    """Files that look like results, in the folder where a script ran."""

    count: int
    bytes: int
    names: List[str]  # names of some of them, relative to that folder


class State(TypedDict, total=False):
    """``state.json``: a field is absent until it is known; ``phase`` is always present."""

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
    stuck_in_framework: bool
    alone: bool
    at_work: List[str]
    checkpoint_found: bool  # whether any file was in TRAIN_CHECKPOINT_DIR when the script started
    left_files: LeftFiles
    lingering: List[str]
    lingering_s: float
    left_out: Dict[str, List[int]]  # for "log" and "progress": the hole, see limited.Hole


class StopReport(TypedDict):
    """How a rank was ended."""

    was: str  # its phase before
    phase: str
    ended: int  # number of processes of the script that have ended
    remaining: List[int]  # processes that could not be ended
    port: Optional[int]
    # None without GPUs, if unknown, and for a rank that had ended before.
    port_free: Optional[bool]
    gpu_memory_free: Optional[bool]  # whether the driver lists none of its processes
    given_back: int  # released leases and places in the queue, of ranks that had not started


class Progress(TypedDict, total=False):
    """A progress record; see ``ProgressWriter``. Numbers may be one of NOT_FINITE."""

    t: float
    phase: str
    source: str
    step: int
    steps: int
    epoch: int
    epochs: int
    batch: int
    batches: int
    loss: Union[float, str]
    metrics: Dict[str, Union[float, str]]
    approximate: Dict[str, Union[float, str]]
    step_time: Dict[str, Union[float, str]]
    examples_per_s: Union[float, str]
    steps_per_s: Union[float, str]
    memory_mb: Union[float, str]
    weights_sha256: str
    checkpoints: str


class _Position(TypedDict):
    phase: str
    frozen: bool
    log: int
    progress: int
    supervisor: int


class Cursor(_Position, total=False):
    """How much has been fetched from a rank: its phase, and the number of bytes of each file."""

    answer: int  # maximum bytes of all files in the next answer


class _Update(TypedDict):
    state: State
    log: str
    progress: str
    supervisor: str
    cursor: Cursor
    more: bool  # there is more to read at once
    age: Optional[float]  # seconds since the last progress or log line; None if there is none
    now: float  # the host's clock
    load: Dict[str, Any]  # see load.facts; empty unless the rank runs


class Update(_Update, total=False):
    """An update of a rank: new text of its files since the cursor, and the next cursor.

    The fields in this class are missing in a job that an earlier version started.
    """

    left: Dict[str, int]  # bytes of each file after the cursor, without its hole
    sizes: Dict[str, int]  # bytes of each file
    last: str  # the end of the log, if it is longer than the text in this update


class Probed(TypedDict):
    """Results of a host for the paths to other ranks."""

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


class Gpu(TypedDict):
    """A GPU of a machine, with the UUIDs of its MIG instances."""

    index: int
    uuid: str
    instances: List[str]


class BusyGpu(TypedDict):
    """Why a GPU is not available, the remedy, and whether the job waits for it."""

    why: str
    remedy: str
    waits: bool


class Environment(TypedDict):
    """An environment of the role tensorflow, to which packages can be added."""

    root: str  # the folder that contains its link
    variant: str  # "cpu" or "gpu"
    python_series: str  # such as "3.11"
    lock_sha256: str  # hash of its lock file
    package_environments: List[str]  # links next to its own, to environments based on it


class HostFacts(TypedDict):
    """Facts about a host that matter to a rank."""

    machine: str  # the same for two ranks of one machine
    address: str
    cores: int
    memory_mb: int
    port: Optional[int]
    root: str
    python: str
    host_python: str
    lease_dir: str
    tensorflow: Optional[str]  # None if the interpreter is not in a virtual environment
    environment: Optional[Environment]  # None if the role tensorflow did not create it
    missing_modules: Optional[List[str]]  # modules that the script imports; None if unknown
    gpus: List[Gpu]
    gpus_wanted: Any  # None if the environment is not to be changed
    gpus_busy: Dict[str, BusyGpu]  # GPUs that are not free, by UUID


class OtherPython(TypedDict):
    """An interpreter that TensorFlow's wheels are made for."""

    path: str
    version: str


class Suitability(TypedDict):
    """Facts that decide whether TensorFlow can be installed and used on a host.

    An empty text means missing or unknown.
    """

    machine: str  # the architecture, such as x86_64
    has_avx: bool
    nvidia: str  # ``driver``, or ``device`` for a GPU without one
    host_python: str  # version of the Python that ran the check
    os_id: str  # ID, ID_LIKE and VERSION_ID of os-release(5)
    os_like: str
    os_version: str
    os_name: str
    interpreter: str  # the interpreter for environments
    python_version: str  # and its version
    implementation: str
    bits: int
    free_threaded: bool
    has_venv: bool
    glibc: str  # such as ``glibc 2.31``
    python_error: str  # why it could not be run
    others: List[OtherPython]  # suitable interpreters, if it is not
    root: str  # the folder for environments
    parent: str  # the nearest existing folder
    obstacle: str  # an obstacle: a file, or a dangling link
    write_error: str
    is_noexec: bool
    mount_point: str
    mount_options: str
    free_mb: int  # in units of 10^6 bytes
    is_installed: bool  # whether an environment exists


def clean(text: str, limit: int) -> str:
    """Return ``text`` without terminal control characters, except newlines and tabs."""
    text = text[: 4 * limit]
    if not text.isprintable():
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text[:limit]


def task_order(task: str) -> Tuple[int, int]:
    """Return the key that sorts tasks such as ``worker-10``: chief first, then by index."""
    kind, _, index = task.partition("-")
    place = TASK_TYPES.index(kind) if kind in TASK_TYPES else len(TASK_TYPES)
    return place, int(index) if is_number(index) else 0


def is_number(text: str) -> bool:
    """Return whether a text consists of ASCII digits; isdigit() also accepts ``²`` and ``٣``."""
    return text.isascii() and text.isdecimal()


def note(text: str, stream: Optional[TextIO] = None) -> None:
    """Print a line at once, on standard error by default; ignored if the disk is full."""
    with contextlib.suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


def write_json(path: str, value: Any, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` with ``value`` as JSON, see ``write_text``."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n", mode, durable)


def write_text(path: str, text: str, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` with ``text`` atomically: a reader sees the old or the new file.

    With ``durable``, this also holds after a power failure. After an OSError, the old file is
    unchanged. Other users of the folder cannot guess the name of the temporary file next to it,
    which remains only after SIGKILL.
    """
    temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``, or None; ValueError if it is not an object."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("%s is nested too deeply" % path) from None
    if not isinstance(value, dict):
        raise ValueError("%s is not a JSON object" % path)
    return value


def expand(path: str) -> str:
    """Return the absolute form of a path, with ``~`` and environment variables expanded."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))


def read_whole(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``; None if the file is missing or truncated."""
    try:
        return read_json(path)
    except ValueError:
        return None


def restarts_made(manifest: Mapping[str, Any]) -> int:
    """Return how often a job was restarted; attempts that were never staged do not count."""
    staged = [attempt for attempt in manifest["attempts"] if attempt["staged"]]
    return max(0, len(staged) - 1)


def _number(name: str, value: Any) -> Any:
    if value in NOT_FINITE:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("%s is not a number" % name)
    if value != value or abs(value) > MAX_NUMBER:
        raise ValueError("%s is out of range" % name)
    return value


def _numbers(name: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("%s is not an object of numbers" % name)
    if len(value) > MAX_METRICS:
        raise ValueError("%s has %d entries, the limit is %d" % (name, len(value), MAX_METRICS))
    names = {clean(key, MAX_NAME): number for key, number in value.items() if number is not None}
    return {key: _number("%s.%s" % (name, key), number) for key, number in names.items()}


def _count(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError("%s is not a non-negative integer" % name)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("%s is not a string" % name)
    return clean(value, MAX_TEXT)


_PROGRESS_FIELDS = {
    **dict.fromkeys(("t", "loss", "examples_per_s", "steps_per_s", "memory_mb"), _number),
    **dict.fromkeys(("step", "steps", "epoch", "epochs", "batch", "batches"), _count),
    **dict.fromkeys(("phase", "source", "weights_sha256", "checkpoints"), _text),
    **dict.fromkeys(("metrics", "approximate", "step_time"), _numbers),
}


def check_progress(value: Any) -> Progress:
    """Return the known fields of a progress record; ValueError if it is invalid."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    found = Progress()
    for name, check in _PROGRESS_FIELDS.items():
        if value.get(name) is not None:
            found[name] = check(name, value[name])  # type: ignore[literal-required]
    return found


def read_progress(text: str) -> Tuple[List[Progress], List[Tuple[int, str]]]:
    """Return the progress records in ``text`` (JSON lines), and the errors in it.

    NaN and infinities are returned as NOT_FINITE. An error is the index of a line, from 0, and a
    text.
    """
    found, wrong = [], []
    for place, line in enumerate(text.split("\n")):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE:
                raise ValueError("it has %d characters, the limit is %d" % (len(line), MAX_LINE))
            found.append(check_progress(json.loads(line, parse_constant=str)))
        except json.JSONDecodeError:
            wrong.append((place, "it is not valid JSON"))
        except RecursionError:
            wrong.append((place, "it is nested too deeply"))
        except ValueError as error:
            wrong.append((place, str(error)))
    return found, wrong


def parse_progress(text: str) -> List[Progress]:
    """Return the progress records in ``text`` (JSON lines), without invalid lines."""
    return read_progress(text)[0]


def with_earlier(record: Progress, earlier: Progress) -> Progress:
    """Return a progress record with its missing fields filled in from ``earlier`` records.

    Records from the console and records of the script are not mixed, and ``approximate`` is not
    carried over.
    """
    if record.get("source") != earlier.get("source"):
        return record
    both: Progress = {**earlier, **record}
    if "approximate" not in record:
        both.pop("approximate", None)
    return both


def is_whole(record: Progress) -> bool:
    """Return whether the metrics of a record are final: a script's, or of a whole Keras epoch."""
    if record.get("source") != "console":
        return True
    return "batches" in record and record.get("batch") == record["batches"]


class ProgressWriter:
    """Appends progress records to ``path``, by default to TRAIN_PROGRESS_FILE if it is set.

    Records that follow one of the same phase within ``min_interval`` seconds are dropped, unless
    ``force`` is given. Records that cannot be written, as on a full disk, are dropped as well. The
    first such error prints a warning, and later records are tried again.
    """

    def __init__(self, path: Optional[str] = None, min_interval: float = 0.5) -> None:
        self.path = path if path is not None else os.environ.get(ENV_PROGRESS)
        self.min_interval = min_interval
        self._last = float("-inf")
        self._phase: Optional[str] = None
        self._is_cut = False  # the last record may be incomplete
        self._has_warned = False

    def due(self, phase: Optional[str] = None) -> bool:
        """Return whether a record would be written now."""
        is_late = time.monotonic() - self._last >= self.min_interval
        return bool(self.path) and (phase != self._phase or is_late)

    def write(self, phase: str, force: bool = False, **fields: Any) -> None:
        """Append one record; TypeError if it cannot be converted to JSON."""
        if not self.path or not (force or self.due(phase)):
            return
        self._last, self._phase = time.monotonic(), phase
        record = dict(fields, t=round(time.time(), 3), phase=phase)
        line = json.dumps(record, sort_keys=True) + "\n"
        try:
            self._append(self.path, "\n" + line if self._is_cut else line)
            self._is_cut = False
        except OSError as error:
            self._is_cut = True
            if not self._has_warned:
                self._has_warned = True
                text = "warning: cannot write %s: %s; records are lost until that succeeds"
                note(text % (os.path.basename(self.path), error))

    @staticmethod
    def _append(path: str, text: str) -> None:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
