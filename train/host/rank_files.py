"""Names of the files and folders of a rank and a job on a host, described in docs/formats.md."""

from __future__ import annotations

import os

RANK_FILE = "rank.json"
TF_CONFIG_FILE = "tf_config.json"
STATE_FILE = "state.json"
PROGRESS_FILE = "progress.jsonl"
LOG_FILE = "stdout.log"
STACKS_FILE = "stacks.txt"
SUPERVISOR_LOG_FILE = "supervisor.log"
CODE_DIR = "code"
LAUNCHER_DIR = "launcher"
#: In LAUNCHER_DIR: a zip archive of train/host. ``python3 programs.zip train.host.NAME`` runs one
#: of its programs. A single file is faster to write and to load on a network file system.
PROGRAMS_FILE = "programs.zip"
#: In LAUNCHER_DIR: the program that runs a script of JAX.
FAIL_AT_ONCE_FILE = "fail_at_once.py"
ATTEMPTS_DIR = "attempts"
JOB_FILE = "job.json"
#: Created by a user or a batch system to report that the rank's host will be reclaimed.
PREEMPT_FILE = "preempt"
#: Marks the control node that has planned an attempt after the first.
CLAIM_FILE = "attempt-%d.claim"
#: Marks a job that was stopped.
STOP_REQUEST_FILE = "stopped.json"
ARCHIVE_FILE = "code.tar.gz"
MODEL_DIR = "model"
CHECKPOINT_DIR = "checkpoints"
TENSORBOARD_DIR = "tensorboard"


def expand(path: str) -> str:
    """Return the absolute form of a path, with ``~`` and environment variables expanded."""
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))
