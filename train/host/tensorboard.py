"""Runs TensorBoard for the jobs of a host until the connection to the control node is closed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

from . import processes, rank_files, records
from .call_types import CallError, CallResult, Params

#: TensorBoard listens on this address only.
ADDRESS = "127.0.0.1"
#: Prefix of folders in which Keras writes data that no other rank needs.
_TEMPORARY = "workertemp_"
#: A program that reads TensorBoard's arguments from its input and runs it, without the folders of
#: Keras' callback for ranks other than the chief.
_PROGRAM = """
import json, sys
sys.argv[1:] = json.load(sys.stdin)
from tensorboard.backend.event_processing import io_wrapper
from tensorboard.main import run_main
every = io_wrapper.GetLogdirSubdirectories
io_wrapper.GetLogdirSubdirectories = lambda path: (
    folder for folder in every(path) if "/workertemp_" not in folder
)
run_main()
"""
#: Part of the name of each event file, which also contains time and host.
_EVENTS = ".tfevents."
#: Maximum number of event files to find.
_MOST_FILES = 10_000


def find_events(params: Params) -> CallResult:
    """Return the sorted names of TensorBoard's ``events`` files, and a free ``port``.

    The files are those of ``jobs`` under ``root``; if ``jobs`` is empty, of all jobs.
    """
    found: List[str] = []
    for folder in _folders(params).values():
        for _, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(_TEMPORARY)]
            found += [name for name in names if _EVENTS in name]
            if len(found) >= _MOST_FILES:
                break
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return {"events": sorted(set(found[:_MOST_FILES])), "port": probe.getsockname()[1]}


def _folders(params: Params) -> Dict[str, str]:
    folder = os.path.join(rank_files.expand(params["root"]), "jobs")
    names = params["jobs"] or (sorted(os.listdir(folder)) if os.path.isdir(folder) else [])
    jobs = filter(records.JOB_PATTERN.fullmatch, names)
    paths = {name: os.path.join(folder, name) for name in jobs}
    return {name: path for name, path in paths.items() if os.path.isdir(path)}


def start_board(
    python: str, folder: str, jobs: List[str], port: int, path: str, temporary: str, output: Any
) -> subprocess.Popen[bytes]:
    """Start TensorBoard for jobs in a folder, by default all of them.

    It has no password, and every user of its machine can connect to its port. It answers only under
    ``path``, which must be random and secret. The path is therefore in no command line, and in
    files only inside the private folder ``temporary``. TensorBoard's data server, which would
    answer every user on another port, is not started.
    """
    named = ["%s:%s" % (job, os.path.join(folder, job)) for job in jobs]
    where = ["--logdir_spec", ",".join(named)] if named else ["--logdir", folder]
    listen = ["--host", ADDRESS, "--port", str(port), "--path_prefix", "/" + path]
    board = subprocess.Popen(
        [python, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, "TMPDIR": temporary},
        preexec_fn=processes.ending_with_parent(signal.SIGTERM),
    )
    assert board.stdin is not None
    with contextlib.suppress(BrokenPipeError), board.stdin:
        board.stdin.write(json.dumps([*where, *listen, "--load_fast", "false"]).encode())
    return board


def serve(params: Params) -> CallResult:
    """Run TensorBoard with ``python`` for ``jobs`` under ``root``; an empty list means all jobs.

    It listens on ``port`` and answers under the URL path ``path``. It runs until the reader of this
    process's output closes it. Raise CallError if TensorBoard ends earlier.
    """
    folder = os.path.join(rank_files.expand(params["root"]), "jobs")
    python, port, path = rank_files.expand(params["python"]), int(params["port"]), params["path"]
    here = list(_folders(params)) if params["jobs"] else []
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryFile() as output:
        board = start_board(python, folder, here, port, path, temporary, output)
        try:
            reader = select.poll()
            reader.register(sys.stdout.fileno(), 0)  # only its end is reported
            while board.poll() is None:
                if reader.poll(500):
                    return {}
        finally:
            board.terminate()
            board.wait()
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    raise CallError(
        "TensorBoard exited (train_job_python is %s): %s" % (python, " ".join(lines[-1:]))
    )
