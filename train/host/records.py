"""The files between a rank's host and the control node: the one module that both sides use.

Standard library only, Python 3.8 and newer, and no import of anything else in this repository:
it runs on the hosts (supervisor, training program, Ansible modules) and on the control node.
``docs/formats.md`` describes every field.

A rank's folder is ``<train root>/jobs/<job>/<task>/``:

============================  ==========================================================
``rank.json``                 what to run (written once, mode 0600)
``tf_config.json``            the rendered TF_CONFIG
``code/``                     the staged script and its neighbours; its working directory
``launcher/``                 the staged supervisor
``stdout.log``                standard output and error of the script
``stacks.txt``                the stacks of all threads of a rank that hung
``progress.jsonl``            one progress record a line
``state.json``                phase, process ids, exit code, reason (replaced atomically)
``model/``, ``checkpoints/``  what the training program leaves
``attempts/<number>/``        the files above of an earlier attempt that are made anew for each
============================  ==========================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

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

#: The variable from which TensorFlow takes gRPC's options, and what a rank wants there: no web
#: proxy (gRPC would send it what the ranks tell one another, and hang), and a peer that is not up
#: yet tried again after 0.1 s, then at most every 0.3 s (by default after 1 s and ever more).
ENV_GRPC = "TF_GRPC_DEFAULT_OPTIONS"
GRPC_OPTIONS = (
    "grpc.enable_http_proxy=0,"
    "grpc.initial_reconnect_backoff_ms=100,"
    "grpc.max_reconnect_backoff_ms=300"
)

RANK_FILE = "rank.json"
TF_CONFIG_FILE = "tf_config.json"
STATE_FILE = "state.json"
PROGRESS_FILE = "progress.jsonl"
LOG_FILE = "stdout.log"
STACKS_FILE = "stacks.txt"
CODE_DIR = "code"
LAUNCHER_DIR = "launcher"
ATTEMPTS_DIR = "attempts"
JOB_FILE = "job.json"
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


def task_order(task: str) -> Tuple[int, int]:
    """Return the key that sorts tasks such as ``worker-10``: chief first, then by index."""
    kind, _, index = task.partition("-")
    place = TASK_TYPES.index(kind) if kind in TASK_TYPES else len(TASK_TYPES)
    return place, int(index) if index.isdigit() else 0


def note(text: str) -> None:
    """Say something on standard error, which may be a file on the disk that it is about.

    What cannot be written is lost, and nothing else; what can is there at once.
    """
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def write_json(path: str, value: Any, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` by ``value`` as JSON, so that a reader sees the old file or the new one.

    Args:
        durable: whether that holds for a loss of power, too; it may take as long as the disk needs
            for what others have written.

    Raises:
        OSError: the folder is missing, not writable or full; the old file is then untouched.
    """
    temporary = "%s.%d.tmp" % (path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``, or None where there is no such file.

    Raises:
        ValueError: the file is not a JSON object.
        OSError: the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return None
    if not isinstance(value, dict):
        raise ValueError("%s holds no JSON object" % path)
    return value


def read_whole(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``; None where there is no such file or it is cut off.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return read_json(path)
    except ValueError:
        return None


def parse_progress(text: str) -> List[Dict[str, Any]]:
    """Return the progress records in ``text`` (JSON lines); lines that are none are left out.

    NaN and infinities, which strict JSON does not know, come as the strings that stand there.
    """
    records = []
    for line in text.splitlines():
        try:
            value = json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            records.append(value)
    return records


class ProgressWriter:
    """Appends progress records to the file that the launcher watches; without one, does nothing.

    Any program can write the same lines by itself: one JSON object a line, all fields optional.

    * ``t``: Unix time in seconds (added here)
    * ``phase``: a word such as ``loading``, ``training``, ``evaluating``, ``saving``, ``done``
    * ``step``, ``steps``: optimizer steps done, and planned for the whole run
    * ``epoch``, ``epochs``: the epoch at work, counted from 1, and how many are planned
    * ``loss``: a number; ``metrics``: an object of numbers, such as ``{"accuracy": 0.93}``
    * ``examples_per_s``: examples of the global batch per second
    * ``weights_sha256``: hash of the final weights, compared over all ranks

    Args:
        path: the file; by default what the environment variable TRAIN_PROGRESS_FILE names.
        min_interval: seconds between two records of the same phase; those that come sooner are
            dropped, unless ``force`` is given.
    """

    def __init__(self, path: Optional[str] = None, min_interval: float = 0.5) -> None:
        self.path = path if path is not None else os.environ.get(ENV_PROGRESS)
        self.min_interval = min_interval
        self._last = float("-inf")
        self._phase: Optional[str] = None

    def due(self, phase: Optional[str] = None) -> bool:
        """Tell whether a record would be written now (so that its values need not be fetched)."""
        if not self.path:
            return False
        return phase != self._phase or time.monotonic() - self._last >= self.min_interval

    def write(self, phase: str, force: bool = False, **fields: Any) -> None:
        """Append one record, unless the one before it is younger than ``min_interval``.

        Raises:
            OSError: the file cannot be written.
            TypeError: a field is no JSON value.
        """
        if not self.path or not (force or self.due(phase)):
            return
        self._last, self._phase = time.monotonic(), phase
        record = dict(fields, t=round(time.time(), 3), phase=phase)
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, sort_keys=True) + "\n")
