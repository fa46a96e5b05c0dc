"""Jobs on this machine, with scripts that need no TensorFlow."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from tests.support.faults import host_variables
from tests.support.jobs import PLAIN, job_processes, plain, train, write_script
from tests.support.lab import Labs
from tests.support.lab import run as command
from tests.support.run_folders import charts_of
from train.host import progress_records


def test_a_module_of_a_package_runs_with_its_arguments(local_lab: Labs, tmp_path: Path) -> None:
    """Its package is too large to be sent with the call that stages a rank."""
    package = tmp_path / "project/trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("SIZE = 7\n")
    (package / "data.bin").write_bytes(os.urandom(600 << 10))  # cannot be compressed
    (package / "task.py").write_text(
        "import os, sys\nfrom trainer.sizes import SIZE\nfrom . import sizes\n"
        "data = os.path.join(os.path.dirname(__file__), 'data.bin')\n"
        "print('ran', SIZE, sys.argv[1:], os.path.getsize(data))\n"
    )
    lab = local_lab(worker=1)
    words = ("--script", str(package.parent), "--module", "trainer.task", "--job", "module")
    run = lab.run(*words, arguments=["--steps", "3"])
    assert run.code == 0, run.error
    log = (lab.runs_dir / "module/logs/worker-0.log").read_text()
    assert "ran 7 ['--steps', '3'] 614400" in log
    again = train(*lab.words("run", *words[:2], "--module", "trainer.missing"))
    assert again.returncode != 0
    assert "no module trainer.missing" in again.stderr


def test_check_mode_ends_with_the_plan(local_lab: Labs) -> None:
    """A task after it, even a skipped one, would cost a process for each host."""
    lab = local_lab(worker=3)
    done = lab.playbook("train.yml", "--check", train_job_script=str(PLAIN))
    assert done.returncode == 0, done.stdout
    tasks = [line for line in done.stdout.splitlines() if line.startswith("TASK")]
    assert "Plan | Plan ranks, code and manifest" in tasks[-1]
    assert "skipping: [worker0]" in done.stdout  # nothing is installed
    assert "skipping: [worker1]" not in done.stdout
    assert not list(lab.runs_dir.glob("*"))


def test_a_job_runs_and_its_results_come_home(
    local_lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is in a vaulted file of the inventory, its folders in host variables."""
    monkeypatch.setenv("LAB", str(tmp_path))
    lab = local_lab()
    lab.variables |= {
        "train_job_root": "$LAB/a host",
        "train_job_lease_dir": "$LAB/its leases",
        "train_job_checkpoint_dir": "$LAB/the share",
    }
    included = [tmp_path / "model.py", tmp_path / "data"]
    included[0].write_text("SIZE = 7")
    included[1].mkdir()
    (included[1] / "small.csv").write_text("1,2")
    include = [f"--include={path}" for path in included]
    secrets, password = lab.inventory / "group_vars/all/vault.yml", tmp_path / "password"
    secrets.write_text("train_job_environment: {SECRET: hunter2-is-secret}\n")
    password.write_text("of the vault\n")
    vault = ["--vault-password-file", str(password)]
    program = str(Path(sys.executable).with_name("ansible-vault"))
    assert command(program, "encrypt", *vault, str(secrets)).returncode == 0
    run = plain(lab, "first", "--steps 4", *vault, "-v", *include).end()
    assert run.code == 0, run.error
    assert "hunter2" not in run.error + json.dumps(run.events)
    assert run.result["state"] == "completed"
    assert run.result["metrics"] == {"accuracy": 1.0}
    assert [rank["task"] for rank in run.result["ranks"]] == ["worker-0", "worker-1"]
    assert [rank["exit_code"] for rank in run.result["ranks"]] == [0, 0]
    saved = lab.saved("first")
    assert (saved["job"], saved["state"], saved["attempts"]) == ("first", "completed", 1)

    job_dir = tmp_path / "a host/jobs/first"
    assert stat.S_IMODE(job_dir.stat().st_mode) == 0o700, "it is its owner's"
    names = sorted(path.name for path in job_dir.iterdir())
    assert names == ["code.tar.gz", "job.json", "worker-0", "worker-1"]
    code = job_dir / "worker-0/code"
    assert (code / "model.py").read_text() == "SIZE = 7", "it is not beside the script"
    assert [path.name for path in (code / "data").iterdir()] == ["small.csv"]
    assert (tmp_path / "its leases").is_dir()
    rank = json.loads((job_dir / "worker-0/rank.json").read_text())
    assert rank["checkpoint_dir"] == str(tmp_path / "the share/first")

    folder = lab.runs_dir / "first"
    progress = progress_records.parse_progress((folder / "progress/worker-0.jsonl").read_text())
    assert [record["step"] for record in progress] == [1, 2, 3, 4]
    assert "secret is set" in (folder / "logs/worker-1.log").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    addresses = [f"localhost:{manifest['hosts'][f'worker{i}']['port']}" for i in (0, 1)]
    assert manifest["cluster"] == {"worker": addresses}
    assert manifest["arguments"] == ["--steps", "4"]
    assert manifest["include"] == [*map(str, included)]
    assert manifest["environment_names"] == ["SECRET"]
    page = (folder / "report.html").read_text()
    assert "all ranks completed" in page
    assert {"loss", "accuracy"} <= set(charts_of(page))
    for path in folder.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert job_processes(tmp_path) == []

    # Later commands find the job's folders.
    for name in [name for name in lab.variables if name.endswith(("_root", "_dir"))]:
        del lab.variables[name]
    stopped = train(*lab.words("stop", "first", *vault))
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
    shown = train(*lab.words("status", "--json", "forks"))
    assert shown.returncode == 0, shown.stderr
    ranks = json.loads(shown.stdout)["ranks"]
    assert [rank["phase"] for rank in ranks] == phases
    assert "ModuleNotFoundError" in ranks[2]["reason"]


def test_what_each_host_lacks_is_named_before_anything_starts(local_lab: Labs) -> None:
    lab = local_lab(worker=4)
    python = {"train_job_python": lab.variables.pop("train_job_python")}
    host_variables(lab, "worker0", train_job_port=70000, **python)
    host_variables(lab, "worker1", train_job_python="/nowhere/python")
    host_variables(lab, "worker2", train_job_min_free_mb=10**9, **python)
    port = host_variables(lab, "worker3", **python)["train_job_port"]
    with socket.create_server(("", port)):
        run = lab.run("--script", str(PLAIN))
    assert run.code == 2
    for message in (
        "worker0: train_job_port is 70000, expected 1 to 65535",
        "playbooks/setup.yml --tags tensorflow` to install TensorFlow",
        "at least 1000000000 MiB are required (train_job_min_free_mb)",
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


#: A task of a cluster. All tasks except the chief would serve for ten minutes.
SCRIPT = """
import json, os, socket, time
print(os.environ["TF_CONFIG"])
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
if kind != "evaluator":
    port = int(config["cluster"][kind][index].rpartition(":")[2])
    server = socket.create_server(("", port))
time.sleep(1 if kind == "chief" else 600)
"""


@pytest.mark.soak
def test_it_prints_what_each_rank_of_a_job_finds_whose_servers_end_with_the_chief(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab = local_lab(chief=1, worker=2, ps=1, evaluator=1)
    done = train(*lab.words("tf-config"))
    assert (done.returncode, done.stderr) == (0, "")
    printed = {
        line["host"]: line["TF_CONFIG"] for line in map(json.loads, done.stdout.splitlines())
    }
    assert [*printed] == ["chief0", "worker0", "worker1", "ps0", "evaluator0"]
    assert not lab.runs_dir.exists()

    one = train(*lab.words("tf-config"), "worker1")
    assert json.loads(one.stdout) == printed["worker1"]

    run = lab.run("--job", "served", "--script", write_script(tmp_path, SCRIPT))
    assert run.code == 0, run.result
    assert {rank["task"]: rank["phase"] for rank in run.result["ranks"]} == {
        "chief-0": "completed",
        "worker-0": "stopped",
        "worker-1": "stopped",
        "ps-0": "stopped",
        "evaluator-0": "stopped",
    }
    for config in printed.values():
        assert sorted(config["cluster"]) == ["chief", "ps", "worker"]
        log = lab.runs_dir / "served/logs" / "{type}-{index}.log".format(**config["task"])
        assert json.loads(log.read_text().partition("\n")[0]) == config
    assert job_processes(lab.root) == []


def test_it_refuses_what_a_job_would_and_a_host_that_is_not_there(local_lab: Labs) -> None:
    lab = local_lab()
    unknown = train(*lab.words("tf-config"), "worker7")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "worker7 has no rank: choose one of worker0, worker1" in unknown.stderr

    with socket.create_server(("0.0.0.0", host_variables(lab, "worker1")["train_job_port"])):
        busy = train(*lab.words("tf-config"))
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "is in use by pid" in busy.stderr
