"""Machines with several ranks (``train_job_ranks``) that are lost over SSH."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.jobs import RING, ssh_processes, train, training, write_script
from tests.support.lab import Command, Lab, free_ports
from tests.support.testbed import Rank, Testbed, running_testbed

pytestmark = [pytest.mark.docker, pytest.mark.soak]

#: Stands in for the driver's program on each host.
NVIDIA_SMI = "#!/bin/sh\necho 'GPU 0: A100 (UUID: GPU-a)'\necho 'GPU 1: A100 (UUID: GPU-b)'\n"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Testbed]:
    with running_testbed(3, tmp_path / "bed") as made:
        for host in made.hosts:
            program = ("install", "-m", "755", "/dev/stdin", "/usr/local/bin/nvidia-smi")
            made.exec(host, *program, user="root", stdin=NVIDIA_SMI)
        yield made


def test_a_spare_machine_replaces_all_ranks_of_a_lost_one(bed: Testbed, tmp_path: Path) -> None:
    """The watch is killed, too, and another control node continues the job."""
    variables = {"train_job_port": free_ports(2)}
    ranks = [Rank(n, h, variables) for n, h in zip(("m0", "m1", "s0"), bed.hosts, strict=True)]
    inventory = bed.write_inventory(
        {"worker": ranks[:2], "spare": ranks[2:]},
        {"train_job_ranks": "auto"},
        path=tmp_path / "inventory",
    )
    given = {
        "train_job_python": "/usr/bin/python3",
        "train_job_restart_host_timeout": 0,
        "train_job_unreachable_timeout": 10,
    }
    lab = Lab(inventory, tmp_path / "runs", given, doubtful=True)
    command = lab.start("--job", "lost", "--script", write_script(tmp_path, RING))
    command.wait_for(training)
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()

    def hosts_of(folder: Path) -> list[str]:
        return [rank["host"] for rank in json.loads((folder / "result.json").read_text())["ranks"]]

    def restarted(event: dict[str, Any]) -> bool:
        return bool(event["event"] == "restart")

    other = Lab(inventory, tmp_path / "other runs", given, doubtful=True)
    with ExitStack() as lost:
        attached = Command(*other.words("attach", "--json", "lost"), doubtful=True)
        attached.wait_for(training)
        lost.enter_context(faults.off(bed.hosts[1]))
        restart = attached.wait_for(restarted)
        assert restart["cause"] == "unreachable"
        assert restart["root_cause"] in ("worker-2", "worker-3")
        run = attached.end()
        assert run.code == 0, run.error
        folder = other.runs_dir / "lost"
        first, last = hosts_of(folder / "attempts/1"), hosts_of(folder)
        assert first == ["m0", "m0-slot-1", "m1", "m1-slot-1"]
        assert last == ["m0", "m0-slot-1", "s0", "s0-slot-1"]
        manifest = json.loads((folder / "manifest.json").read_text())
        assert sorted(manifest["attempts"][1]["left_out"]) == ["m1", "m1-slot-1"]
        ports = [address.rpartition(":")[2] for address in manifest["cluster"]["worker"]]
        first_port = variables["train_job_port"]
        assert ports == [str(first_port), str(first_port + 1)] * 2

        shown = train(*other.words("status", "--json", "lost"))
        names = [rank["host"] for rank in json.loads(shown.stdout)["ranks"] if rank["task"]]
        assert names == last
    assert ssh_processes(bed) == []
