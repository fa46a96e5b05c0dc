"""The reasons why a rank ended.

``data/ends/*.log`` are logs of scripts that were ended by TensorFlow, JAX, PyTorch, C++ or
libraries that download. ``too-large`` has the same error class as the three ``oom``, but for
another reason, after a warning about memory. ``lost-rank`` has lost another rank, after a line
about a download.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.host import end_causes, ends
from train.host.processes import read_text

NONE = (0, 0)
CHILD_KILLED = (
    "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed.",
    "RuntimeError: DataLoader worker (pid(s) 1234) exited unexpectedly",
    "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated "
    "abruptly while the future was running or pending.",
    "subprocess.CalledProcessError: Command '['prepare']' died with <Signals.SIGKILL: 9>.",
)
XLA_OOM = "a.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."
NUMPY = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4 GiB"
NOT_REACHED = "this is not an error in the script: the host cannot reach %s"
NOT_FOUND = "Exception: URL fetch failure on https://a.org/b.npz: 404 -- Not Found"


@pytest.mark.parametrize(
    ("code", "log", "killed", "full", "cause", "reason"),
    [
        (0, "ValueError: told and caught", NONE, "", None, ""),
        (-9, "", NONE, "", end_causes.SIGNAL, "was killed by SIGKILL (signal 9)"),
        (
            -9,
            "",
            (1, 1),
            "",
            end_causes.MEMORY,
            "because its control group was out of memory; its peak",
        ),
        (
            -9,
            "",
            (0, 2),
            "",
            end_causes.MEMORY,
            "because its host was out of memory; its peak memory use was 700",
        ),
        (-15, "", (1, 1), "", end_causes.SIGNAL, "was killed by SIGTERM (signal 15)"),
        (1, "x\nKeyError: 'a'\n", NONE, "", end_causes.EXIT, "exited with code 1: KeyError: 'a'"),
        (3, "", NONE, "", end_causes.EXIT, "exited with code 3"),
        (
            1,
            "OSError: [Errno 28] No space left on device: 'x'",
            NONE,
            "",
            end_causes.DISK,
            "Errno 28",
        ),
        (
            1,
            "",
            NONE,
            "/data",
            end_causes.DISK,
            "exited with code 1; the disk that holds /data is full",
        ),
        (
            1,
            "MemoryError: Unable to allocate 4 GiB",
            NONE,
            "",
            end_causes.MEMORY,
            "peak memory use was 700 MiB",
        ),
        (
            1,
            "MemoryError: std::bad_alloc",
            NONE,
            "",
            end_causes.MEMORY,
            "peak memory use was 700 MiB",
        ),
        (
            1,
            NUMPY,
            NONE,
            "",
            end_causes.MEMORY,
            "Unable to allocate 4 GiB; its peak memory use was 700 MiB",
        ),
        (
            -6,
            "caught: std::bad_alloc",
            NONE,
            "",
            end_causes.SIGNAL,
            "was killed by SIGABRT (signal 6)",
        ),
        (1, XLA_OOM, NONE, "", end_causes.MEMORY, "allocate 9 bytes.; its GPU was out of memory"),
        (
            1,
            NOT_FOUND,
            NONE,
            "",
            end_causes.EXIT,
            "exited with code 1: Exception: URL fetch failure on",
        ),
        (
            1,
            "ConnectionRefusedError: [Errno 111] Connection refused",
            NONE,
            "",
            end_causes.EXIT,
            "111",
        ),
        (-40, "", NONE, "", end_causes.SIGNAL, "was killed by signal 40"),
        # sys.exit(-1); codes from 129 to 192 are those of shells, whose last line explains nothing.
        (255, "no data in /data", NONE, "", end_causes.EXIT, "code 255; its last line: no data"),
        (137, "step 5", NONE, "", end_causes.EXIT, "exited with code 137"),
        *(
            (1, error, (1, 1), "", end_causes.MEMORY, f"{error}; the kernel killed one of its")
            for error in CHILD_KILLED
        ),
        *((1, error, NONE, "", end_causes.EXIT, error) for error in CHILD_KILLED),
        (
            1,
            "ImportError: libgomp.so.1: cannot allocate memory in static TLS block",
            NONE,
            "",
            end_causes.EXIT,
            "static TLS block",
        ),
        *(
            (1, error, NONE, "", end_causes.MEMORY, "; its GPU was out of memory")
            for error in (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
                "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB)",
                "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
            )
        ),
        *(
            (1, error, NONE, "", end_causes.MEMORY, "; its peak memory use was 700 MiB")
            for error in (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't "
                "allocate memory: you tried to allocate 4096 bytes.",
                "OSError: [Errno 12] Cannot allocate memory",
            )
        ),
    ],
)
def test_causes(code: int, log: str, killed: Any, full: str, cause: Any, reason: str) -> None:
    found, text = ends.explain(code, log, killed, 700, full)
    assert found == cause
    assert reason in text


def test_a_rank_without_gpus_exhausts_main_memory() -> None:
    found, text = ends.explain(1, XLA_OOM, NONE, 700, "", has_gpus=False)
    assert found == end_causes.MEMORY
    assert "its peak memory use was 700 MiB" in text


def test_a_small_file_shows_whether_a_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends.can_write(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert not ends.can_write(str(tmp_path / "missing"))
    monkeypatch.setattr(ends, "disk_full", lambda folder: True)
    assert not ends.can_write(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "code", "cause", "reason"),
    [
        ("bad-alloc", -6, end_causes.MEMORY, "SIGABRT (signal 6) because memory allocation failed"),
        ("oom-gpu", 1, end_causes.MEMORY, "[Op:Mul]; its GPU was out of memory"),
        ("oom-graph", 1, end_causes.MEMORY, "Graph execution error; its GPU was out of memory"),
        ("oom-cpu", 1, end_causes.MEMORY, "[Op:Mul]; its peak memory use was 700 MiB"),
        ("too-large", 1, end_causes.EXIT, "ResourceExhaustedError: Received message larger"),
        ("keras", 1, end_causes.DOWNLOAD, "known; " + NOT_REACHED % "storage.googleapis.com"),
        ("urllib", 1, end_causes.DOWNLOAD, "known>; " + NOT_REACHED % "data.example.org"),
        ("requests", 1, end_causes.DOWNLOAD, NOT_REACHED % "huggingface.co"),
        ("gcs", 1, end_causes.DOWNLOAD, NOT_REACHED % "storage.googleapis.com"),
        ("lost-rank", 1, end_causes.EXIT, "failed to connect to all addresses"),
        (
            "jax-lost-rank",
            1,
            end_causes.EXIT,
            "exited with code 1: jax.errors.JaxRuntimeError: INTERNAL: Error dispatching "
            "computation: Gloo all-reduce failed: ",
        ),
        ("torch-lost-rank", 1, end_causes.EXIT, "] Connection closed by peer [127.0.0.1]:11181."),
    ],
)
def test_causes_in_logs(name: str, code: int, cause: str, reason: str) -> None:
    log = (REPOSITORY / f"tests/data/ends/{name}.log").read_text()
    # A kill by the kernel for lack of memory explains only an end by SIGKILL.
    found, text = ends.explain(code, log, (1, 1), 700, "")
    assert found == cause
    assert reason in text


def test_kills_by_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, kills in (("a/b/memory.events", 2), ("memory/c/memory.oom_control", 5)):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(f"low 0\noom 3\noom_kill {kills}\n")
    files = {"/proc/self/cgroup": "4:memory:/c\n0::/a/b\n", "/proc/vmstat": "oom_kill 9\n"}
    monkeypatch.setattr(ends, "read_text", lambda path: files.get(path) or read_text(path))
    assert ends.memory_kills(str(tmp_path)) == (7, 9)
    assert ends.memory_kills(str(tmp_path / "none")) == (0, 9)
