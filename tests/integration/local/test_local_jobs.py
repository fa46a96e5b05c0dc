"""Jobs on this machine, with a script that needs no TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN, job_processes, plain, train, training
from tests.support.lab import Lab
from tests.support.lab import run as command
from train.host import processes, records

Labs = Callable[..., Lab]


def test_a_job_runs_and_its_results_come_home(local_lab: Labs, tmp_path: Path) -> None:
    """Its environment comes from a vaulted file of the inventory."""
    lab = local_lab()
    secrets, password = lab.inventory / "group_vars/all/vault.yml", tmp_path / "password"
    secrets.write_text("train_job_environment: {SECRET: hunter2-is-secret}\n")
    password.write_text("of the vault\n")
    vault = ["--vault-password-file", str(password)]
    program = str(Path(sys.executable).with_name("ansible-vault"))
    assert command(program, "encrypt", *vault, str(secrets)).returncode == 0
    run = plain(lab, "first", "--steps 4", *vault, "-v").end()
    assert run.code == 0, run.error
    assert "hunter2" not in run.error + json.dumps(run.events)
    assert run.result["state"] == "completed"
    assert run.result["metrics"] == {"accuracy": 1.0}
    assert [rank["task"] for rank in run.result["ranks"]] == ["worker-0", "worker-1"]
    assert [rank["exit_code"] for rank in run.result["ranks"]] == [0, 0]
    folder = lab.runs_dir / "first"
    saved = lab.saved("first")
    assert (saved["job"], saved["state"], saved["attempts"]) == ("first", "completed", 1)
    job_dir = Path(lab.root, "jobs/first")
    assert stat.S_IMODE(job_dir.stat().st_mode) == 0o700, "it is its owner's"
    assert {path.name for path in job_dir.iterdir() if path.is_dir()} == {"worker-0", "worker-1"}
    assert "secret is set" in (folder / "logs/worker-1.log").read_text()
    progress = records.parse_progress((folder / "progress/worker-0.jsonl").read_text())
    assert [record["step"] for record in progress] == [1, 2, 3, 4]
    manifest = json.loads((folder / "manifest.json").read_text())
    addresses = [f"localhost:{manifest['hosts'][f'worker{i}']['port']}" for i in (0, 1)]
    for index in (0, 1):
        expected = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        assert manifest["tf_config"][f"worker-{index}"] == expected
        log = (folder / f"logs/worker-{index}.log").read_text()
        assert json.loads(log.split("TF_CONFIG ", 1)[1].splitlines()[0]) == expected
    assert manifest["arguments"] == ["--steps", "4"]
    assert manifest["environment_names"] == ["SECRET"]
    for path in folder.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert job_processes(lab.root) == []


def test_included_files_lie_beside_the_script_in_folders_with_variables_of_the_host(
    local_lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB", str(tmp_path))
    lab = local_lab()
    for name, text in {
        "script/main.py": "import model, os\nprint(model.SIZE, os.listdir('data'))",
        "mine/model.py": "SIZE = 7",
        "mine/data/small.csv": "1,2",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / "mine" / name) for name in ("model.py", "data")]
    lab.variables |= {
        "train_job_root": "$LAB/a host",
        "train_job_lease_dir": "$LAB/its leases",
        "train_job_checkpoint_dir": "$LAB/the share",
    }
    run = lab.run(
        *("--script", str(tmp_path / "script"), "--job", "with"),
        *("--include", given[0], "--include", given[1]),
    )
    assert run.code == 0, run.error
    assert "7 ['small.csv']" in (lab.runs_dir / "with/logs/worker-0.log").read_text()
    manifest = json.loads((lab.runs_dir / "with/manifest.json").read_text())
    assert manifest["include"] == given
    assert sorted(path.name for path in (tmp_path / "a host/jobs/with").iterdir()) == [
        *("code.tar.gz", "job.json", "worker-0", "worker-1")
    ]
    assert (tmp_path / "its leases").is_dir()
    rank = json.loads((tmp_path / "a host/jobs/with/worker-0/rank.json").read_text())
    assert rank["checkpoint_dir"] == str(tmp_path / "the share/with")
    # What is done with the job later knows where it is.
    for name in [name for name in lab.variables if name.endswith(("_root", "_dir"))]:
        del lab.variables[name]
    stopped = train(*lab.words("stop", "with"))
    assert stopped.returncode == 0, stopped.stderr
    assert "worker0: completed -> completed" in stopped.stdout


def test_two_forks_watch_four_ranks_and_the_playbook_alone_names_the_culprit(
    local_lab: Labs,
) -> None:
    lab = local_lab(worker=4)
    done = lab.playbook(
        "train.yml",
        *("--forks", "2"),
        train_job_script=str(PLAIN / "main.py"),
        train_job_args=["--steps", "300", "--fail", "worker-2"],
        train_job_id="forks",
    )
    assert done.returncode == 2, done.stdout
    assert "worker-2 on worker2 exited with code 1: ModuleNotFoundError" in done.stdout
    assert "import a_module_that_is_missing" in done.stdout
    result = lab.saved("forks")
    assert (result["state"], result["root_cause"]) == ("failed", "worker-2")
    phases = [rank["phase"] for rank in result["ranks"]]
    assert phases == ["stopped", "stopped", "failed", "stopped"]
    for index in range(4):
        assert (lab.runs_dir / f"forks/progress/worker-{index}.jsonl").read_text(), index
    assert job_processes(lab.root) == []


def test_the_worker_of_a_killed_supervisor_dies_with_it(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "orphan", "--steps 900 --child")
    command.wait_for(training)
    state = records.read_json(str(lab.root / "jobs/orphan/worker-1/state.json"))
    assert state is not None
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes.is_alive(state["pid"], state["pid_start"]):
        assert time.monotonic() < deadline, "the script outlived its supervisor"
        time.sleep(0.05)
    run = command.end()
    assert run.code == 1
    assert "worker-1 on worker1 ended with its supervisor" in run.result["message"]
    done = train(*lab.words("status", "--json", "orphan"))
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["phase"] for rank in ranks] == ["stopped", "failed"]
    assert "ended with its supervisor" in ranks[1]["reason"]
    assert job_processes(lab.root) == []


def test_parameter_servers_end_when_the_chief_does(local_lab: Labs) -> None:
    lab = local_lab(chief=1, worker=1, ps=1, evaluator=1)
    script = lab.inventory.parent / "ps" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "import json, os, socket, time\n"
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "kind = config['task']['type']\n"
        "if kind != 'evaluator':\n"
        "    server = socket.socket()\n"
        "    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    server.bind(('', int(config['cluster'][kind][0].rpartition(':')[2])))\n"
        "    server.listen()\n"
        "print(sorted(config['cluster']), kind)\n"
        "time.sleep(1 if kind == 'chief' else 600)\n"
    )
    run = lab.run("--job", "served", "--script", str(script))
    assert run.code == 0, run.result
    phases = {rank["task"]: rank["phase"] for rank in run.result["ranks"]}
    assert phases == {
        "chief-0": "completed",
        "worker-0": "stopped",
        "ps-0": "stopped",
        "evaluator-0": "stopped",
    }
    log = (lab.runs_dir / "served/logs/evaluator-0.log").read_text()
    assert "['chief', 'ps', 'worker'] evaluator" in log
    assert job_processes(lab.root) == []


#: What the argument specs refuse, all at once, and by which words.
SPECIFIED = {
    "train_job_port": "many",
    "train_job_keras": 4,
    "train_job_args": {"a": 1},
    "train_job_environment": "x",
}
REFUSED = [*SPECIFIED, "value of train_job_keras must be one of: 2, 3"]


@pytest.mark.parametrize(
    ("variables", "messages"),
    [
        (SPECIFIED, REFUSED),
        ({"train_job_prot": 1}, ["there is no variable train_job_prot: did you mean train_job_"]),
    ],
    ids=["specified", "unknown"],
)
def test_wrong_variables_are_named_before_anything_starts(
    local_lab: Labs, variables: dict[str, Any], messages: list[str]
) -> None:
    lab = local_lab()
    done = lab.playbook("train.yml", **{"train_job_script": str(PLAIN), **variables})
    assert done.returncode == 2
    for message in messages:
        assert message in " ".join(done.stdout.split()), done.stdout
    assert not (lab.root / "jobs").exists()
    assert not lab.runs_dir.exists() or not list(lab.runs_dir.iterdir())


def test_what_each_host_lacks_is_named_before_anything_starts(local_lab: Labs) -> None:
    lab = local_lab(worker=4)
    path = lab.inventory / "hosts.yml"
    inventory = json.loads(path.read_text())
    hosts = inventory["all"]["children"]["worker"]["hosts"]
    del lab.variables["train_job_python"]
    python = {"train_job_python": sys.executable}
    hosts["worker0"] |= {"train_job_port": 70000, **python}
    hosts["worker1"] |= {"train_job_python": "/nowhere/python"}
    hosts["worker2"] |= {"train_job_min_free_mb": 10**9, **python}
    hosts["worker3"] |= python
    path.write_text(json.dumps(inventory))
    port = hosts["worker3"]["train_job_port"]
    with socket.create_server(("", port)):
        run = lab.run("--script", str(PLAIN))
    assert run.code == 2
    for message in (
        "worker0: train_job_port is 70000, the limits are 1 and 65535",
        "run playbooks/setup.yml first",
        "the limit is 1000000000 MiB (train_job_min_free_mb)",
        f"worker3: port {port} is in use by pid {os.getpid()}",
    ):
        assert message in run.result["message"]
    assert not (lab.root / "jobs").exists()
    assert not list(lab.runs_dir.iterdir())


def test_an_empty_inventory(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    lab.inventory = tmp_path / "empty.yml"
    lab.inventory.write_text("all: {hosts: {}}\n")
    run = lab.run("--script", str(PLAIN))
    assert run.code == 2
    assert "has no host in the groups chief, worker, ps and evaluator" in run.result["message"]


def test_a_job_that_runs_already(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "twice", "--steps 900", "--on-interrupt", "stop")
    command.wait_for(training)
    run = lab.run("--job", "twice", "--script", str(PLAIN))
    assert run.code == 2
    assert "holds job twice already" in run.error
    elsewhere = Lab(lab.inventory, lab.runs_dir.with_name("other"), lab.variables)
    run = elsewhere.run("--job", "twice", "--script", str(PLAIN))
    assert run.code == 2
    assert "job twice is running already (worker-" in run.result["message"]
    command.process.send_signal(signal.SIGINT)
    assert command.end().result["state"] == "stopped"


def test_wrong_arguments_of_the_training_program(local_lab: Labs) -> None:
    run = local_lab().run(arguments=["--batch-size", "63"])
    assert run.code == 2
    assert "--batch-size" in run.result["message"]
