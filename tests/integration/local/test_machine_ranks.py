"""Jobs on hosts that have several ranks (``train_job_ranks``)."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.gpus import Copy, Machine
from tests.support.jobs import job_processes, plain, rank_pid, train, training
from tests.support.lab import Labs, free_ports
from tests.support.lab import run as command


def test_two_hosts_have_two_ranks_each(local_lab: Labs, tmp_path: Path) -> None:
    """A secret of a host, templates with its name, a killed rank, and the names in commands."""
    lab = local_lab()
    ports = {"worker0": free_ports(2), "worker1": free_ports(2)}
    (lab.inventory / "group_vars/all/ranks.yml").write_text(
        "train_job_ranks: 2\n"
        "train_job_environment: {OF: '{{ inventory_hostname }}', SECRET: '{{ password }}'}\n"
    )
    (lab.inventory / "host_vars").mkdir()
    for host, port in ports.items():
        variables = {"train_job_port": port, "password": "hunter2-is-secret"}
        (lab.inventory / f"host_vars/{host}.yml").write_text(yaml.safe_dump(variables))
    secrets, password = lab.inventory / "host_vars/worker1.yml", tmp_path / "password"
    password.write_text("of the vault\n")
    vault = ["--vault-password-file", str(password)]
    program = str(Path(sys.executable).with_name("ansible-vault"))
    assert command(program, "encrypt", *vault, str(secrets)).returncode == 0
    words = ("--steps 40", *vault, "-vv")
    command_of_job = plain(lab, "several", *words, train_job_max_restarts=1)
    command_of_job.wait_for(training)
    os.kill(rank_pid(lab.root, "several", "worker-3"), signal.SIGKILL)
    run = command_of_job.end()
    assert run.code == 0, run.error
    assert "hunter2" not in run.error + json.dumps(run.events)
    result = lab.saved("several")
    assert (result["state"], result["attempts"]) == ("completed", 2)

    folder = lab.runs_dir / "several"
    manifest = json.loads((folder / "manifest.json").read_text())
    names = ["worker0", "worker0-slot-1", "worker1", "worker1-slot-1"]
    assert [rank["host"] for rank in manifest["ranks"]] == names
    first, second = ports.values()
    addresses = [f"localhost:{port}" for port in (first, first + 1, second, second + 1)]
    for index, name in enumerate(names):
        rank_dir = lab.root / f"jobs/several/worker-{index}"
        assert json.loads((rank_dir / "tf_config.json").read_text()) == {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        environment = json.loads((rank_dir / "rank.json").read_text())["environment"]
        assert (environment["OF"], environment["SECRET"]) == (name[:7], "hunter2-is-secret")
        assert "secret is set" in (folder / f"logs/worker-{index}.log").read_text()
    before = json.loads((folder / "attempts/1/result.json").read_text())
    assert before["root_cause"] == "worker-3"
    assert before["message"].startswith("worker-3 on worker1-slot-1 ")
    assert job_processes(tmp_path) == []

    shown = train(*lab.words("status", "--json", "several", *vault))
    assert shown.returncode == 0, shown.stderr
    assert [rank["host"] for rank in json.loads(shown.stdout)["ranks"]] == names
    stopped = train(*lab.words("stop", "several", *vault))
    assert stopped.returncode == 0, stopped.stderr
    assert "worker1-slot-1: completed -> completed" in stopped.stdout


def test_auto_is_a_rank_for_each_gpu(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.delenv(name, raising=False)
    copy = Copy(tmp_path, machine, ranks=1)
    machine.has(3)
    done = copy.run("auto", train_job_ranks="auto", train_job_port=free_ports(3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert copy.seen("auto") == [f"{gpu} PCI_BUS_ID true" for gpu in range(3)]
