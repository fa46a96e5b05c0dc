"""Jobs over SSH, in containers, as an unprivileged user."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.faults import host_variables
from tests.support.jobs import PLAIN, check_digits, ssh_processes
from tests.support.lab import REPOSITORY, Lab, Labs, environment, free_port
from tests.support.testbed import Rank, Testbed

pytestmark = pytest.mark.docker
#: Variables for jobs that do not need TensorFlow.
WITHOUT = {"train_job_python": "/usr/bin/python3"}


@pytest.mark.soak
@pytest.mark.tensorflow
def test_chief_two_workers_and_an_evaluator(
    ssh_lab: Labs, testbed: Testbed, tf_python: str
) -> None:
    lab = ssh_lab(chief=1, worker=2, evaluator=1)
    run = lab.run("--job", "guide")
    assert run.code == 0, run.result
    check_digits(lab, "guide", tf_python)
    manifest = json.loads((lab.runs_dir / "guide/manifest.json").read_text())
    address = {
        name: f"{facts['address']}:{facts['port']}" for name, facts in manifest["hosts"].items()
    }
    cluster = {
        "chief": [address["chief0"]],
        "worker": [address["worker0"], address["worker1"]],
    }
    places = {"chief-0": 0, "worker-0": 1, "worker-1": 2, "evaluator-0": 3}
    for task, host in places.items():
        kind, _, index = task.partition("-")
        path = f"/home/train/train/jobs/guide/{task}/tf_config.json"
        on_host = json.loads(testbed.exec(testbed.hosts[host], "cat", path).stdout)
        assert on_host == {"cluster": cluster, "task": {"type": kind, "index": int(index)}}
    assert manifest["cluster"] == cluster
    assert ssh_processes(testbed) == []
    for signum in (signal.SIGINT, signal.SIGKILL):
        check_tensorboard(lab, testbed, signum)


def check_tensorboard(lab: Lab, testbed: Testbed, signum: signal.Signals) -> None:
    """Open the job's TensorBoard through SSH, and end the command that serves it."""
    words = lab.words("tensorboard", "guide", "--port", str(free_port()))
    command = [sys.executable, "-m", "train", *words]
    with Popen(command, cwd=REPOSITORY, env=environment(), stdout=PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[3]
        try:
            with urlopen(f"{url}data/runs") as answer:
                assert json.load(answer) == ["guide/chief-0/tensorboard"]
        finally:
            process.send_signal(signum)
    assert process.returncode in (0, -signal.SIGKILL)
    host = testbed.hosts[0]
    wait_until(lambda: "tensorboard" not in testbed.exec(host, "ps", "-ef").stdout, "its end")
    with pytest.raises(URLError):
        urlopen(url)


CIFAR_10 = """
import pickle, sys, numpy as np
data = np.random.default_rng(1).integers(0, 256, (32, 3072), np.uint8)
for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
    with open(f"{sys.argv[1]}/{name}", "wb") as stream:
        pickle.dump({b"labels": [*range(8)] * 4, b"data": data}, stream)
"""


@pytest.mark.soak
@pytest.mark.tensorflow
def test_an_example_reads_what_setup_has_placed(
    ssh_lab: Labs, tf_python: str, tmp_path: Path
) -> None:
    """examples/resnet56-cifar10 over SSH, with a small network and images of the same shape."""
    lab = ssh_lab(worker=2)
    source = tmp_path / "cifar-10/cifar-10-batches-py"
    source.mkdir(parents=True)
    subprocess.run([tf_python, "-c", CIFAR_10, source], check=True)
    placed = lab.playbook(
        "setup.yml",
        setup_roles=["training_data"],
        training_data_root="/home/train/train/data",
        training_data=[{"name": "cifar-10", "src": str(source.parent)}],
    )
    assert placed.returncode == 0, placed.stdout[-3000:]
    small = ["--depth", "8", "--batch-size", "16", "--steps-per-epoch", "3", "--epochs", "1"]
    data = ["--data-dir", "/home/train/train/data/cifar-10"]
    script = str(REPOSITORY / "examples/resnet56-cifar10")
    given = {"train_job_script": script, "train_job_id": "cifar", "train_job_args": [*data, *small]}
    run = lab.playbook("train.yml", **given)
    assert run.returncode == 0, run.stdout[-3000:]
    assert {"accuracy", "val_accuracy", "val_loss"} <= set(lab.saved("cifar")["metrics"])
    assert "synthetic" not in (lab.runs_dir / "cifar/logs/worker-0.log").read_text()


def test_a_host_that_does_not_answer(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    host_variables(lab, "worker1", ansible_host="127.0.0.9")
    run = lab.run("--script", str(PLAIN), **WITHOUT)
    assert run.code == 4
    assert "worker1 is unreachable" in run.result["message"]
    assert ssh_processes(testbed) == []


def test_what_is_wrong_on_each_host_is_named(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=3)
    host_variables(lab, "worker0", train_job_root="/root/jobs")
    host_variables(lab, "worker2", ansible_python_interpreter="/usr/bin/grep")
    hidden = "mv /usr/bin/python3.11 /usr/bin/hidden; mv /usr/bin/python3 /usr/bin/hidden3"
    testbed.exec("host-1", "sh", "-c", hidden, user="root")
    try:
        run = lab.run("--script", str(PLAIN), **WITHOUT)
    finally:
        shown = "mv /usr/bin/hidden /usr/bin/python3.11; mv /usr/bin/hidden3 /usr/bin/python3"
        testbed.exec("host-1", "sh", "-c", shown, user="root")
    assert run.code == 4, run.result
    for words in (
        "worker0: /root is not writable: choose another train_job_root",
        "worker1 is unreachable: the host has no Python",
        "worker2: the host's Python printed no result: ",
        "Usage: grep",
    ):
        assert words in run.result["message"], run.result["message"]
    assert ssh_processes(testbed) == []


def test_an_address_that_nobody_knows(ssh_lab: Labs, testbed: Testbed) -> None:
    unknown = {"train_job_address": "{{ inventory_hostname }}.nowhere.invalid", **WITHOUT}
    run = ssh_lab(worker=2).run("--script", str(PLAIN), **unknown)
    assert run.code == 2
    words = "cannot resolve worker0.nowhere.invalid, worker1.nowhere.invalid"
    assert words in run.result["message"]
    assert ssh_processes(testbed) == []


def test_a_machine_under_two_names_is_warned_of(testbed: Testbed, tmp_path: Path) -> None:
    host = testbed.hosts[0]
    other = {"ansible_host": "other.lab", "train_job_address": host.address}
    other |= {"ansible_ssh_extra_args": f"-o HostName={host.address}", "train_job_port": "23456"}
    ranks = [Rank("one", host), Rank("two", host, other), Rank("three", testbed.hosts[1])]
    inventory = testbed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
    lab = Lab(inventory, tmp_path / "runs", WITHOUT)
    done = lab.playbook("train.yml", "--check", train_job_script=str(PLAIN))
    assert done.returncode == 0, done.stdout
    told = " ".join(done.stdout.split())
    names = f"({host.address} port 22, other.lab port 22)"
    assert f"one and two connect to the same machine at different addresses {names}" in told
    assert told.count("at different addresses") == 1
