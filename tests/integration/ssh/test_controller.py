"""A host of the cluster watches a job, while the machine that started it is cut off."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.bare_ranks import wait_until
from tests.support.jobs import PLAIN, rank_state, train, training
from tests.support.lab import REPOSITORY, Command, Lab, ansible_playbook, free_port
from tests.support.testbed import Rank, Testbed, running_testbed

pytestmark = pytest.mark.docker

SECRET = "hunter2-is-secret"
ROOT = "/home/train/train/controller"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Yield three SSH hosts that can log in to one another, with the wheels for the watch."""
    wheels = REPOSITORY / ".cache/wheelhouse-controller"
    wheels.mkdir(parents=True, exist_ok=True)
    wanted = {
        "tensorflow_framework": "none",
        "tensorflow_extra_requirements": str(REPOSITORY / "requirements/controller.txt"),
        "tensorflow_wheelhouse_source": str(wheels),
    }
    done = ansible_playbook("wheelhouse.yml", Path("localhost,"), wanted)
    assert done.returncode == 0, done.stdout[-3000:]
    folder = tmp_path_factory.mktemp("controller")
    mounts = [f"{wheels}:/wheelhouse:ro"]
    with running_testbed(3, folder, mounts=mounts) as made:
        keys = {"setup_roles": ["ssh_keys"]}
        done = ansible_playbook("setup.yml", made.directory / "inventory", keys)
        assert done.returncode == 0, done.stdout[-3000:]
        yield made


@pytest.fixture
def lab(bed: Testbed, tmp_path: Path) -> Lab:
    ranks = [
        Rank(f"w{number}", host, {"train_job_port": free_port()})
        for number, host in enumerate(bed.hosts)
    ]
    variables = {
        "train_job_python": "/usr/bin/python3",
        "tensorflow_wheelhouse": "/wheelhouse",
        "train_job_restart_delay": 0.5,
        "train_job_update_interval": 0.5,
    }
    inventory = bed.write_inventory({"worker": ranks}, variables, path=tmp_path / "inventory")
    return Lab(inventory, tmp_path / "runs", doubtful=True)


def words_of(lab: Lab, job: str, arguments: str, *options: str, **variables: Any) -> list[str]:
    chosen = ("--job", job, "--script", str(PLAIN), *options)
    return lab.words("run", *chosen, arguments=arguments.split(), **variables)


def test_first(lab: Lab, bed: Testbed) -> None:
    began = time.monotonic()
    done = train(*words_of(lab, "night", "--steps 100", "--on", "w0", "--detach"))
    print(time.monotonic() - began, done.stdout, done.stderr)
    print(bed.exec("host-0", "sh", "-c", "find train/controller -maxdepth 3 | head -50; cat train/controller/jobs/night/inventory.yml; tail -50 train/controller/jobs/night/runs/night/watch.log; ps -ef", check=False).stdout)
    began = time.monotonic()
    done = train(*lab.words("attach", "night"))
    print(time.monotonic() - began, done.stdout, done.stderr)
    assert done.returncode == 0
