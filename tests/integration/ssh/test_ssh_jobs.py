"""Jobs over SSH, in containers, as an unprivileged user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.jobs import PLAIN, check_digits, ssh_processes, training
from tests.support.lab import Lab
from tests.support.testbed import Testbed, docker

Labs = Callable[..., Lab]
pytestmark = pytest.mark.docker


@pytest.mark.tensorflow
def test_training_over_ssh(ssh_lab: Labs, testbed: Testbed, tf_python: str) -> None:
    lab = ssh_lab(worker=4)
    run = lab.run("--job", "ssh4")
    assert run.code == 0, run.result
    result = check_digits(lab, "ssh4", tf_python)
    assert len(result["ranks"]) == 4
    assert ssh_processes(testbed) == []


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
        assert manifest["tf_config"][task] == on_host
    assert ssh_processes(testbed) == []


@pytest.mark.tensorflow
def test_a_module_that_is_missing_on_one_rank(
    ssh_lab: Labs, testbed: Testbed, tmp_path: Any
) -> None:
    script = tmp_path / "code" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "import json, os\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:\n"
        "    import a_module_that_is_missing\n"
        "import tensorflow as tf\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    )
    lab = ssh_lab(worker=2)
    run = lab.run("--script", str(script))
    assert run.code == 1
    message = run.result["message"]
    assert message.startswith("worker-1 on worker1 exited with code 1: ModuleNotFoundError")
    assert ssh_processes(testbed) == []


def test_two_forks_and_eight_ranks_on_four_hosts(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=8)
    done = lab.playbook(
        "train.yml",
        *("--forks", "2"),
        train_job_id="eight",
        train_job_script=str(PLAIN),
        train_job_python="/usr/bin/python3",
    )
    assert done.returncode == 0, done.stdout
    result = lab.saved("eight")
    assert [rank["phase"] for rank in result["ranks"]] == ["completed"] * 8
    for index in range(8):
        assert f"worker-{index} (worker{index}): completed" in done.stdout
    assert ssh_processes(testbed) == []


def test_a_host_that_does_not_answer(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    hosts = json.loads((lab.inventory / "hosts.yml").read_text())
    hosts["all"]["children"]["worker"]["hosts"]["worker1"]["ansible_host"] = "127.0.0.9"
    (lab.inventory / "hosts.yml").write_text(json.dumps(hosts))
    run = lab.run("--script", str(PLAIN), train_job_python="/usr/bin/python3")
    assert run.code == 4
    assert "worker1 is unreachable" in run.result["message"]
    assert ssh_processes(testbed) == []


def test_a_host_that_vanishes_while_others_make_steps_is_waited_for(
    ssh_lab: Labs, testbed: Testbed
) -> None:
    lab = ssh_lab(worker=2)
    command = lab.start(
        *("--job", "vanished", "--script", str(PLAIN)),
        arguments=["--steps", "900"],
        train_job_python="/usr/bin/python3",
        train_job_unreachable_timeout=4,
    )
    command.wait_for(training)
    docker("pause", testbed.host("host-1").container)
    try:
        told = command.wait_for(lambda event: bool(event["event"] == "notice"))
    finally:
        docker("unpause", testbed.host("host-1").container)
    assert (told["kind"], told["task"]) == ("unreachable", "worker-1"), told
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    assert lab.saved("vanished")["attempts"] == 1
    assert ssh_processes(testbed) == []


def test_a_host_without_python(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    hidden = "mv /usr/bin/python3.11 /usr/bin/hidden; mv /usr/bin/python3 /usr/bin/hidden3"
    testbed.exec("host-1", "sh", "-c", hidden, user="root")
    try:
        run = lab.run("--script", str(PLAIN), train_job_python="/usr/bin/python3")
    finally:
        shown = "mv /usr/bin/hidden /usr/bin/python3.11; mv /usr/bin/hidden3 /usr/bin/python3"
        testbed.exec("host-1", "sh", "-c", shown, user="root")
    assert run.code == 2
    assert "worker1: there is no Python" in run.result["message"]
    assert "install python3" in run.result["message"]
    assert ssh_processes(testbed) == []


def test_a_folder_that_is_not_writable(ssh_lab: Labs) -> None:
    run = ssh_lab(worker=1).run(
        "--script", str(PLAIN), train_job_python="/usr/bin/python3", train_job_root="/root/jobs"
    )
    assert run.code == 2
    assert "is not writable: choose another train_job_root" in run.result["message"]


def test_an_address_that_nobody_knows(ssh_lab: Labs, testbed: Testbed) -> None:
    run = ssh_lab(worker=2).run(
        *("--script", str(PLAIN)),
        train_job_python="/usr/bin/python3",
        train_job_address="{{ inventory_hostname }}.nowhere.invalid",
    )
    assert run.code == 2
    assert (
        "cannot resolve worker0.nowhere.invalid, worker1.nowhere.invalid" in (run.result["message"])
    )
    assert ssh_processes(testbed) == []
