"""Starts ranks of the training program as processes of this machine; a pytest plugin.

PYTEST_DONT_REWRITE: test modules import this module before pytest registers it as a plugin.
"""

from __future__ import annotations

import json
import signal
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, clean_environment, free_port
from tests.support.tensorflow_forks import Fork, forks

TRAIN = REPOSITORY / "train"
WORKER = TRAIN / "worker.py"
#: Maximum seconds to wait for a process of a test.
PATIENCE = 300
#: The tasks of a small cluster with a parameter server.
TASKS = ("ps-0", "worker-0", "worker-1", "chief-0")


def tf_config(kind: str, index: int, **jobs: list[str]) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@dataclass
class Rank:
    """A process of the training program (or of code that uses it) and its folder."""

    process: Fork
    folder: Path

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and return the exit code."""
        code = self.process.poll(seconds)
        assert code is not None, f"it does not end: {self.said()}"
        return code

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "progress"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def weights(self) -> str:
        """Return the hash of the weights that the rank reported at its end."""
        last = self.records()[-1]
        assert last["phase"] == "done", self.said()
        return str(last["weights_sha256"])

    def wait_for(self, phase: str) -> dict[str, Any]:
        """Wait for the first record of a phase and return it."""
        wait_until(self, lambda: any(record["phase"] == phase for record in self.records()))
        return next(record for record in self.records() if record["phase"] == phase)


Start = Callable[..., Rank]


def patched(code: str) -> str:
    """Return a script that runs the program after ``code`` has replaced parts of it."""
    return f"import worker\n{code}\nworker.main()"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(int(path.stem[5:]) for path in folder.glob("ckpt-*.npz"))


def about_checkpoint(path: Path) -> Any:
    """Return a checkpoint's description: JSON after the first line of an array's file."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("about.npy").partition(b"\n")[2])


def wait_until(rank: Rank, condition: Callable[[], bool]) -> None:
    """Wait for a condition while a rank runs."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert rank.process.poll() is None, rank.said()
        assert time.monotonic() < limit, rank.said()
        time.sleep(0.02)


def kill(ranks: list[Rank], victims: list[int] | None = None) -> None:
    """Kill some ranks of a gang, by default all; wait for the end of all."""
    for index in range(len(ranks)) if victims is None else victims:
        ranks[index].process.send_signal(signal.SIGKILL)
    for rank in ranks:
        rank.end()


@pytest.fixture(scope="module")
def start(tf_python: str) -> Iterator[Start]:
    """Return a function that starts a rank in a folder, with a script or the program itself."""
    ranks: list[Rank] = []

    def begin(
        folder: Path,
        *arguments: str,
        script: str = "",
        variables: Mapping[str, str] | None = None,
        keras: int = 2,
    ) -> Rank:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "progress").unlink(missing_ok=True)
        own = {
            "TRAIN_PROGRESS_FILE": str(folder / "progress"),
            "PYTHONPATH": str(TRAIN),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # The supervisor's setting for each of two ranks on a machine with two cores.
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
            **(variables or {}),
        }
        (folder / "log").write_text("")
        process = forks(tf_python, keras).start(
            list(arguments) if script else [str(WORKER), *arguments],
            clean_environment(**own),
            folder,
            folder / "log",
            script=script,
        )
        ranks.append(Rank(process, folder))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.process.kill()
        rank.end()


def start_gang(
    start: Start,
    folder: Path,
    *arguments: str,
    workers: int = 2,
    variables: Mapping[int, Mapping[str, str]] | None = None,
    **options: Any,
) -> list[Rank]:
    """Start some workers in the folders ``0``, ``1`` ..., which may contain an earlier run.

    Args:
        variables: additional environment variables by worker.
    """
    addresses = [f"localhost:{free_port()}" for _ in range(workers)]
    ranks = []
    for index in range(workers):
        own = dict((variables or {}).get(index, {}))
        if workers > 1:
            own["TF_CONFIG"] = tf_config("worker", index, worker=addresses)
        ranks.append(start(folder / str(index), *arguments, variables=own, **options))
    return ranks


def run_gang(
    start: Start, folder: Path, *arguments: str, workers: int = 2, **options: Any
) -> list[Rank]:
    """Start some workers; return them when all have ended with 0."""
    ranks = start_gang(start, folder, *arguments, workers=workers, **options)
    assert [rank.end() for rank in ranks] == [0] * workers, [rank.said() for rank in ranks]
    return ranks


def cluster_addresses() -> dict[str, list[str]]:
    """Return addresses for TASKS, by job."""
    counts = {"chief": 1, "worker": 2, "ps": 1}
    return {job: [f"localhost:{free_port()}" for _ in range(n)] for job, n in counts.items()}


def start_task(
    start: Start,
    folder: Path,
    addresses: dict[str, list[str]],
    task: str,
    *arguments: str,
    **options: Any,
) -> Rank:
    """Start a task of a cluster in a folder with its name."""
    job, _, index = task.partition("-")
    variables = {"TF_CONFIG": tf_config(job, int(index), **addresses)}
    return start(folder / task, *arguments, variables=variables, **options)
