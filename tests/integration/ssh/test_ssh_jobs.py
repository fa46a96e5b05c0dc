"""Jobs over SSH, in containers, as an unprivileged user."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.faults import host_variables
from tests.support.jobs import PLAIN, check_digits, ssh_processes
from tests.support.lab import Lab
from tests.support.testbed import Testbed

Labs = Callable[..., Lab]
pytestmark = pytest.mark.docker
#: TensorFlow has no part in what is tested.
WITHOUT = {"train_job_python": "/usr/bin/python3"}


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


def test_a_host_that_does_not_answer(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    host_variables(lab, "worker1", ansible_host="127.0.0.9")
    run = lab.run("--script", str(PLAIN), **WITHOUT)
    assert run.code == 4
    assert "worker1 is unreachable" in run.result["message"]
    assert ssh_processes(testbed) == []


def test_what_is_wrong_on_each_host_is_named(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    host_variables(lab, "worker0", train_job_root="/root/jobs")
    hidden = "mv /usr/bin/python3.11 /usr/bin/hidden; mv /usr/bin/python3 /usr/bin/hidden3"
    testbed.exec("host-1", "sh", "-c", hidden, user="root")
    try:
        run = lab.run("--script", str(PLAIN), **WITHOUT)
    finally:
        shown = "mv /usr/bin/hidden /usr/bin/python3.11; mv /usr/bin/hidden3 /usr/bin/python3"
        testbed.exec("host-1", "sh", "-c", shown, user="root")
    assert run.code == 2
    for words in (
        "worker0: /root is not writable: choose another train_job_root",
        "worker1: there is no Python",
        "install python3",
    ):
        assert words in run.result["message"]
    assert ssh_processes(testbed) == []


def test_an_address_that_nobody_knows(ssh_lab: Labs, testbed: Testbed) -> None:
    unknown = {"train_job_address": "{{ inventory_hostname }}.nowhere.invalid", **WITHOUT}
    run = ssh_lab(worker=2).run("--script", str(PLAIN), **unknown)
    assert run.code == 2
    words = "cannot resolve worker0.nowhere.invalid, worker1.nowhere.invalid"
    assert words in run.result["message"]
    assert ssh_processes(testbed) == []
