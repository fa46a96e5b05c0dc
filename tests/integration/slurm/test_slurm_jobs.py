"""Jobs in a real Slurm in containers: by SSH and srun, to the time limit, cancelled."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from tests.support.slurm import SlurmCluster, running_slurm

pytestmark = pytest.mark.docker

#: The file that users copy.
BATCH = (REPOSITORY / "examples/slurm/train.sbatch").read_text(encoding="utf-8")
SCRIPT = "/project/tests/data/scripts/saving/main.py"
HOSTS = ["node-1-slot-0", "node-1-slot-1", "node-2-slot-0", "node-2-slot-1"]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
#: Whether Slurm itself signals the job before its time limit, which takes minutes. Otherwise the
#: test sends that signal.
REAL_LIMIT = bool(os.environ.get("SLURM_REAL_LIMIT"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(cluster: SlurmCluster, *words: str, options: tuple[str, ...] = ()) -> str:
    """Submit the batch file with further words for ``train run``."""
    batch = cluster.home / "train.sbatch"
    batch.write_text(BATCH, encoding="utf-8")
    variables = {
        "train_job_python": "/usr/bin/python3",
        "train_job_runs_dir": "/home/train/runs",
        "train_job_update_interval": 0.5,
    }
    arguments = ["--script", SCRIPT, "-e", json.dumps(variables), *words]
    environment = "ALL,TRAIN_PROJECT=/project,TRAIN_PYTHON=/control/bin/python"
    given = ("--parsable", "--time=30", f"--export={environment}", *options)
    return cluster.exec("controller", "sbatch", *given, batch.name, *arguments).strip()


def result(cluster: SlurmCluster, job: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (cluster.home / f"runs/slurm-{job}/result.json").read_text(encoding="utf-8")
    )
    return loaded


def logs(cluster: SlurmCluster, job: str) -> list[str]:
    """Return the logs of worker 0 and worker 1, with those of earlier attempts."""
    folder = cluster.home / f"train/jobs/slurm-{job}"
    return [
        "".join(path.read_text() for path in sorted((folder / rank).rglob("stdout.log")))
        for rank in ("worker-0", "worker-1")
    ]


def wait_until(condition: Callable[[], bool], timeout: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.2)


def wait_for_training(cluster: SlurmCluster, job: str) -> None:
    """Wait until both ranks make steps."""
    folder = cluster.home / f"train/jobs/slurm-{job}"
    ranks = [folder / rank / "progress.jsonl" for rank in ("worker-0", "worker-1")]

    def both_train() -> bool:
        return all(path.exists() and path.stat().st_size > 0 for path in ranks)

    wait_until(both_train, 400, lambda: f"{cluster.show(job)} {cluster.output(job)[-3000:]}")


@pytest.mark.parametrize("connection", [pytest.param("ssh", marks=pytest.mark.soak), "srun"])
def test_a_job_trains_on_its_nodes(cluster: SlurmCluster, connection: str) -> None:
    options = ("--ntasks-per-node=2",)
    job = submit(cluster, "-c", connection, "--", "5", "0.1", options=options)
    fields = cluster.wait(job, ENDED, 420)
    assert fields["JobState"] == "COMPLETED", cluster.output(job)
    ranks = result(cluster, job)["ranks"]
    assert [rank["host"] for rank in ranks] == HOSTS
    assert {rank["exit_code"] for rank in ranks} == {0}
    manifest = json.loads((cluster.home / f"runs/slurm-{job}/manifest.json").read_text())
    first = 20_000 + int(job) % 625 * 16
    addresses = [f"node-{node}:{first + slot}" for node in (1, 2) for slot in (0, 1)]
    assert manifest["cluster"] == {"worker": addresses}


def test_a_job_at_its_time_limit_is_requeued_and_continues(cluster: SlurmCluster) -> None:
    limit = ("--time=2", "--signal=B:USR1@60") if REAL_LIMIT else ()
    job = submit(cluster, "--", "600", "0.4", options=limit)
    wait_for_training(cluster, job)
    if not REAL_LIMIT:
        time.sleep(2)
        cluster.exec("controller", "scancel", "--batch", "--signal=USR1", job)
    # Until it is back in the queue, its state may be that of a job that has ended.
    wait_until(
        lambda: int(cluster.show(job)["Restarts"]) > 0, 400, lambda: cluster.output(job)[-3000:]
    )
    fields = cluster.wait(job, ENDED, 600)
    assert fields["JobState"] == "COMPLETED", cluster.output(job)
    # The batch scripts of both starts have ended, with all that they had started.
    batch = f"job{int(job):05}/slurm_script"

    def left() -> list[str]:
        return [line for line in cluster.processes() if batch in line]

    wait_until(lambda: not left(), 5, lambda: "\n".join(left()))
    assert "because Slurm has restarted its batch job" in cluster.output(job)
    for log in logs(cluster, job):
        saved = {line.split()[-1] for line in log.splitlines() if line.startswith("saved step")}
        begun = {line.split()[-1] for line in log.splitlines() if line.startswith("begins")}
        assert saved, log
        assert begun == {"0", *saved}, "each attempt continues where the one before has ended"
    assert result(cluster, job)["state"] == "completed"
    assert result(cluster, job)["attempts"] == int(fields["Restarts"]) + 1
    folder = cluster.home / f"runs/slurm-{job}"
    first = json.loads((folder / "attempts/1/result.json").read_text(encoding="utf-8"))
    assert first["cause"] == "preempted"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    # Such restarts do not count.
    preempted = [attempt["preempted"] for attempt in manifest["attempts"]]
    assert preempted == [False, *[True] * int(fields["Restarts"])]


@pytest.mark.soak
def test_a_signal_to_all_steps_is_a_notice(cluster: SlurmCluster) -> None:
    job = submit(cluster, "-c", "srun", "--", "2000", "0.3")
    wait_for_training(cluster, job)
    cluster.exec("controller", "scancel", "--signal=USR1", job)
    cluster.wait(job, ENDED, 300)  # no node is left
    ended = result(cluster, job)
    assert (ended["state"], ended["cause"]) == ("failed", "preempted")
    assert "notice by SIGUSR1" in ended["message"]
    for log in logs(cluster, job):
        assert "saved step" in log, "the ranks had time for their checkpoints"


def test_a_cancelled_job_leaves_no_process(cluster: SlurmCluster) -> None:
    # Slurm asks the ranks to end, because they belong to steps of the job.
    job = submit(cluster, "-c", "srun", "--", "2000", "0.3")
    wait_for_training(cluster, job)
    assert [line for line in cluster.processes() if "main.py" in line]
    cluster.exec("controller", "scancel", job)
    fields = cluster.wait(job, ENDED, 90)
    assert fields["JobState"] == "CANCELLED"

    def of_job() -> list[str]:
        return [line for line in cluster.processes() if f"slurm-{job}" in line or "srun" in line]

    wait_until(lambda: not of_job(), 20, lambda: "\n".join(of_job()))
    assert not [line for line in cluster.processes() if "main.py" in line]
    for log in logs(cluster, job):
        assert "saved step" in log, "the ranks had time for their checkpoints"


def test_hosts_of_an_allocation_are_those_of_scontrol(cluster: SlurmCluster) -> None:
    job = cluster.submit(
        "#!/bin/bash\ncd /project\n"
        "/control/bin/ansible-inventory -i inventory/slurm --list --limit worker\n",
        *("--nodes=2", "--exclusive", "--time=5"),
    )
    assert cluster.wait(job, ENDED)["JobState"] == "COMPLETED", cluster.output(job)
    # Without a number of tasks, each node is a rank, although Slurm counts the cores.
    assert json.loads(cluster.output(job))["worker"]["hosts"] == ["node-1", "node-2"]
