"""The files between a rank's host and the control node, described in docs/formats.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, TextIO, Tuple, TypedDict, Union

FORMAT_VERSION = 1

#: Environment variables that a rank's process finds.
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
#: All of them: these are filled in where an argument of the script names one.
OWN_VARIABLES = frozenset(
    (
        *(ENV_JOB, ENV_RANK_DIR, ENV_PROGRESS, ENV_MODEL_DIR, ENV_CHECKPOINT_DIR),
        *(ENV_TENSORBOARD_DIR, ENV_SEED, ENV_START_TIMEOUT, ENV_ATTEMPT, ENV_CHECKPOINT_COPY),
    )
)

#: The variable from which TensorFlow takes gRPC's options, and what a rank wants there: no web
#: proxy (gRPC would send it what the ranks tell one another, and hang), and a peer that is not up
#: yet tried again after 0.1 s, then at most every 0.3 s (by default after 1 s and ever more).
ENV_GRPC = "TF_GRPC_DEFAULT_OPTIONS"
GRPC_OPTIONS = (
    "grpc.enable_http_proxy=0,"
    "grpc.initial_reconnect_backoff_ms=100,"
    "grpc.max_reconnect_backoff_ms=300"
)

#: The variable from which glibc (2.35 or newer) takes its allocator's options, and what a rank
#: wants there. By default, memory that a step has freed goes back to the kernel, and the next step
#: gets it again page by page: up to half of a step's time on CPUs. So: huge pages where the kernel
#: gives some on request, and freed memory stays with the process, in two arenas, as each keeps its
#: own.
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
#: Of an attempt after the first: which control node has planned it.
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
#: How NaN and infinities, which strict JSON does not know, are handed on.
NOT_FINITE = ("NaN", "Infinity", "-Infinity")

#: Escape sequences of a terminal, and characters that control it or the direction of text.
_ESCAPES = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?|[ -/]*[0-~])?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class HeldLeases(TypedDict):
    """What a rank holds of its machine: the folder of the leases, and what people call each."""

    folder: str
    created_at: float
    resources: Dict[str, str]


class RankSpec(TypedDict):
    """``rank.json``: what a supervisor runs."""

    version: int
    job: str
    task: str
    host: str
    machine: str  # where it was staged, as in HostFacts
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
    names: List[str]  # of some of them, in that folder


class State(TypedDict, total=False):
    """``state.json``: a field is absent until it is known; ``phase`` is always there."""

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
    left_out: Dict[str, List[int]]  # of "log" and "progress": the hole, see limited.Hole


class StopReport(TypedDict):
    """How a rank was ended."""

    was: str  # its phase before
    phase: str
    ended: int  # how many processes of the script are no more
    remaining: List[int]  # those that could not be ended
    port: Optional[int]
    # None without one, where that cannot be known, and for a rank that had ended before.
    port_free: Optional[bool]
    gpu_memory_free: Optional[bool]  # whether the driver lists none of its processes
    given_back: int  # leases and places in the queue of the job whose ranks had not started


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
    """What was fetched of a rank: its phase, and how many bytes of each of its files."""

    answer: int  # bytes of all files that the next answer may have


class _Update(TypedDict):
    state: State
    log: str
    progress: str
    supervisor: str
    cursor: Cursor
    more: bool  # there is more to read at once
    age: Optional[float]  # seconds since the last progress or log line; None where there is none
    now: float  # the host's clock
    load: Dict[str, Any]  # see load.facts; empty unless it runs


class Update(_Update, total=False):
    """What is new of a rank: text of its files since the cursor, and the cursor after it. The
    fields here are missing from a job that an earlier version has started.
    """

    left: Dict[str, int]  # bytes of each file after the cursor, without its hole
    sizes: Dict[str, int]  # bytes of each file
    last: str  # the end of the log, if there is more of it than came with this update


class Probed(TypedDict):
    """What a host found of the paths to other ranks."""

    reached: Dict[str, str]  # for each peer one of the results in probe.py
    listening: bool  # whether the rank's own port is bound
    own: bool  # whether its address is one of this host's
    addresses: List[str]  # those that are
    proxy: str  # see probe.proxy


class RankInfo(TypedDict):
    """What the control node keeps of a rank."""

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
    idle: float  # seconds since its last sign of life
    processes: int  # how many it has
    progress: Progress  # its last step and epoch
    log_from: int  # where the wanted lines of its log begin, in bytes


class ListedManifest(TypedDict):
    """What a job listing has of ``job.json``."""

    attempt: int
    created_at: float
    tasks: Dict[str, str]  # the inventory host of each rank of that attempt
    hosts: List[str]  # those of all attempts
    restarts: int  # how many may follow


class ListedJob(TypedDict):
    """A job that a host knows of."""

    job: str
    size: Optional[int]  # bytes on the disk; None where not measured
    manifest: Optional[ListedManifest]
    ranks: List[ListedRank]


class Gpu(TypedDict):
    """A GPU of a machine, with the UUIDs of its MIG instances."""

    index: int
    uuid: str
    instances: List[str]


class BusyGpu(TypedDict):
    """Why a GPU cannot be had, what helps, and whether the job waits for it."""

    why: str
    remedy: str
    waits: bool


class Environment(TypedDict):
    """An environment of the role tensorflow, on top of which packages can be put."""

    root: str  # the folder of its link
    variant: str  # "cpu" or "gpu"
    python_series: str  # such as "3.11"
    lock_sha256: str  # of the lock file that it was made from
    package_environments: List[str]  # links beside its own, to environments on top of it


class HostFacts(TypedDict):
    """What a rank needs to know of its host."""

    machine: str  # the same for two ranks of one machine
    address: str
    cores: int
    memory_mb: int
    port: Optional[int]
    root: str
    python: str
    host_python: str
    lease_dir: str
    tensorflow: Optional[str]  # None where the interpreter belongs to no virtual environment
    environment: Optional[Environment]  # None where the role tensorflow did not make it
    missing_modules: Optional[List[str]]  # of those that the script imports; None if unknown
    gpus: List[Gpu]
    gpus_wanted: Any  # None where the environment is to be left alone
    gpus_busy: Dict[str, BusyGpu]  # those that are not free, by UUID


class OtherPython(TypedDict):
    """An interpreter that TensorFlow's wheels are made for."""

    path: str
    version: str


class Suitability(TypedDict):
    """What decides whether TensorFlow can be installed and used on a host; an empty text stands for
    what is not there or not known.
    """

    machine: str  # the architecture, such as x86_64
    has_avx: bool
    nvidia: str  # ``driver``, or ``device`` for a GPU without one
    host_python: str  # version of the Python that has looked
    os_id: str  # ID, ID_LIKE and VERSION_ID of os-release(5)
    os_like: str
    os_version: str
    os_name: str
    interpreter: str  # what environments are made from
    python_version: str  # and what it is
    implementation: str
    bits: int
    free_threaded: bool
    has_venv: bool
    glibc: str  # such as ``glibc 2.31``
    python_error: str  # why it could not be asked
    others: List[OtherPython]  # interpreters that fit, where it does not
    root: str  # folder of the environments
    parent: str  # the nearest one that exists
    obstacle: str  # what is in the way: a file, or a link that leads nowhere
    write_error: str
    is_noexec: bool
    mount_point: str
    mount_options: str
    free_mb: int  # in units of 10^6 bytes
    is_installed: bool  # whether an environment is there


def clean(text: str, limit: int) -> str:
    """Return ``text`` without what would control a terminal, but with newlines and tabs."""
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
    """Return whether a text is a number in ASCII digits: isdigit() accepts ``²`` and ``٣``, too."""
    return text.isascii() and text.isdecimal()


def note(text: str, stream: Optional[TextIO] = None) -> None:
    """Print a line at once, on standard error by default; nothing if its file is on a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


def write_json(path: str, value: Any, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` by ``value`` as JSON, as ``write_text`` does."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n", mode, durable)


def write_text(path: str, text: str, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: a reader sees the old file or the new one; with ``durable``
    also after a loss of power. After an OSError the old file is untouched. The temporary file next
    to it has a name that other users of the folder cannot guess; only SIGKILL leaves it behind.
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
    """Return the JSON object in ``path``, None without such a file; ValueError for no object."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("%s is nested too deeply" % path) from None
    if not isinstance(value, dict):
        raise ValueError("%s holds no JSON object" % path)
    return value


def expand(path: str) -> str:
    """Return a path as an absolute one, with ``~`` and variables of the environment filled in."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))


def read_whole(path: str) -> Optional[Dict[str, Any]]:
    """Return as ``read_json`` the object in ``path``; None where it is cut off, too."""
    try:
        return read_json(path)
    except ValueError:
        return None


def restarts_made(manifest: Mapping[str, Any]) -> int:
    """Return how often a job was started again: attempts that were never staged do not count."""
    staged = [attempt for attempt in manifest["attempts"] if attempt["staged"]]
    return max(0, len(staged) - 1)


def _number(name: str, value: Any) -> Any:
    if value in NOT_FINITE:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("%s is no number" % name)
    if value != value or abs(value) > MAX_NUMBER:
        raise ValueError("%s is out of range" % name)
    return value


def _numbers(name: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("%s is no object of numbers" % name)
    if len(value) > MAX_METRICS:
        raise ValueError("%s has %d entries, the limit is %d" % (name, len(value), MAX_METRICS))
    names = {clean(key, MAX_NAME): number for key, number in value.items() if number is not None}
    return {key: _number("%s.%s" % (name, key), number) for key, number in names.items()}


def _count(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError("%s is no count" % name)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("%s is no text" % name)
    return clean(value, MAX_TEXT)


_PROGRESS_FIELDS = {
    **dict.fromkeys(("t", "loss", "examples_per_s", "steps_per_s", "memory_mb"), _number),
    **dict.fromkeys(("step", "steps", "epoch", "epochs", "batch", "batches"), _count),
    **dict.fromkeys(("phase", "source", "weights_sha256", "checkpoints"), _text),
    **dict.fromkeys(("metrics", "approximate", "step_time"), _numbers),
}


def check_progress(value: Any) -> Progress:
    """Return a progress record with the fields that the launcher knows; ValueError for none."""
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    found = Progress()
    for name, check in _PROGRESS_FIELDS.items():
        if value.get(name) is not None:
            found[name] = check(name, value[name])  # type: ignore[literal-required]
    return found


def read_progress(text: str) -> Tuple[List[Progress], List[Tuple[int, str]]]:
    """Return the progress records in ``text`` (JSON lines), NaN and infinities as NOT_FINITE, and
    for each line that is none, its place from 0 and what is wrong.
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
            wrong.append((place, "it is no JSON"))
        except RecursionError:
            wrong.append((place, "it is nested too deeply"))
        except ValueError as error:
            wrong.append((place, str(error)))
    return found, wrong


def parse_progress(text: str) -> List[Progress]:
    """Return the progress records in ``text`` (JSON lines); lines that are none are left out."""
    return read_progress(text)[0]


def with_earlier(record: Progress, earlier: Progress) -> Progress:
    """Return a progress record with what the ``earlier`` ones hold and it lacks. Keras' lines and a
    script's own records count by themselves, and what is approximate is not kept.
    """
    if record.get("source") != earlier.get("source"):
        return record
    both: Progress = {**earlier, **record}
    if "approximate" not in record:
        both.pop("approximate", None)
    return both


def is_whole(record: Progress) -> bool:
    """Return whether the metrics of a record are final: a script's or of a whole epoch of Keras."""
    if record.get("source") != "console":
        return True
    return "batches" in record and record.get("batch") == record["batches"]


class ProgressWriter:
    """Appends progress records to ``path``, or else to TRAIN_PROGRESS_FILE; without one, to none.

    Records that come sooner than ``min_interval`` seconds after one of the same phase are dropped,
    unless ``force`` is given. So are those that cannot be written, as on a full disk: the first one
    is a warning, and the next ones are tried.
    """

    def __init__(self, path: Optional[str] = None, min_interval: float = 0.5) -> None:
        self.path = path if path is not None else os.environ.get(ENV_PROGRESS)
        self.min_interval = min_interval
        self._last = float("-inf")
        self._phase: Optional[str] = None
        self._is_cut = False  # the last record may be there in part
        self._has_warned = False

    def due(self, phase: Optional[str] = None) -> bool:
        """Return whether a record would be written now, so that its values are needed."""
        is_late = time.monotonic() - self._last >= self.min_interval
        return bool(self.path) and (phase != self._phase or is_late)

    def write(self, phase: str, force: bool = False, **fields: Any) -> None:
        """Append one record; TypeError if it cannot be JSON."""
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
