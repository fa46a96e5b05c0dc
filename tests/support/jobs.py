"""Queries for tests of jobs: their processes, and whether a rank trains or has trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.bare_ranks import state, wait_until
from tests.support.data_folders import DIGITS
from tests.support.lab import REPOSITORY, Command, Lab, run
from tests.support.testbed import Testbed
from tests.support.training_script import call, np, tf
from train.host import processes

PLAIN = REPOSITORY / "tests/data/scripts/plain"
#: Makes steps in a ring of ranks, in which each waits for the one before it. The first attempt does
#: not end by itself.
RING = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
addresses, index = config["cluster"]["worker"], config["task"]["index"]
server = socket.create_server(("0.0.0.0", int(addresses[index].rpartition(":")[2])))
host, _, port = addresses[(index + 1) % len(addresses)].rpartition(":")
while True:
    try:
        following = socket.create_connection((host, int(port)))
        break
    except OSError:
        time.sleep(0.1)
before, _ = server.accept()
for step in range(1, 21 if os.environ["TRAIN_ATTEMPT"] == "2" else 100_000):
    try:
        following.send(b"x")
        lost = not before.recv(1)
    except OSError:
        lost = True
    if lost:
        time.sleep(600)
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        print(json.dumps({"phase": "training", "step": step}), file=stream)
    time.sleep(0.1)
"""


def job_processes(root: Path) -> list[str]:
    """Return the command lines of this machine's processes that belong to jobs under ``root``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(root).encode() in words:
                found.append(words[:200].decode(errors="replace"))
    return found


def rank_pid(root: Path, job: str, task: str) -> int:
    """Return the pid of a rank's script as soon as it runs."""
    rank_dir = root / "jobs" / job / task
    wait_until(lambda: "pid" in state(rank_dir), rank_dir)
    return int(state(rank_dir)["pid"])


def training(event: dict[str, Any]) -> bool:
    return event["event"] == "rank" and bool(event["progress"].get("step"))


def ssh_processes(testbed: Testbed) -> list[str]:
    """Return the processes of any job on the hosts."""
    # Include the scripts and their children, whatever their names.
    search = (
        "pgrep -fa 'host[.]supervisor|host[.]updates|jobs/'; "
        "grep --files-with-matches --text TRAIN_RANK_DIR= /proc/[0-9]*/environ"
    )
    found = []
    for host in testbed.hosts:
        lines = testbed.exec(host, "sh", "-c", search, check=False).stdout.splitlines()
        found += [line for line in lines if "pgrep" not in line]
    return found


def rank_state(testbed: Testbed, host: str, job: str, task: str) -> dict[str, Any]:
    """Return a rank's ``state.json``."""
    path = f"/home/train/train/jobs/{job}/{task}/state.json"
    loaded: dict[str, Any] = json.loads(testbed.exec(host, "cat", path).stdout)
    return loaded


def train(*words: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "train", *words)


def write_script(folder: Path, text: str) -> str:
    """Write a script into a separate folder in ``folder``, and return its path."""
    path = folder / "script/main.py"
    path.parent.mkdir()
    path.write_text(text)
    return str(path)


def plain(lab: Lab, job: str, words: str = "", *options: str, **variables: Any) -> Command:
    """Start a job of the script PLAIN with the arguments ``words``."""
    chosen = ("--job", job, "--script", str(PLAIN), *options)
    return lab.start(*chosen, arguments=words.split(), **variables)


def ansible_of(lab: Lab) -> list[int]:
    """Return the pids of the Ansible processes that work for a lab."""
    wanted = ("ansible-playbook", str(lab.inventory))
    return [
        pid
        for pid, value in processes.marked("ANSIBLE_CONFIG")
        if value == str(REPOSITORY / "ansible.cfg")
        and all(word in processes.command(pid) for word in wanted)
    ]


def _accuracy(path: Path) -> float:
    """Return a model's accuracy on the digits, computed with TensorFlow."""
    table = np.loadtxt(DIGITS, delimiter=",", dtype="float32")
    model = tf.keras.models.load_model(path)
    images = table[:, :-1].reshape(-1, *model.input_shape[1:]) / 16
    predicted = np.argmax(model.predict(images, verbose=0), axis=1)
    return float(np.mean(predicted == table[:, -1]))


def check_digits(lab: Lab, job: str, tf_python: str) -> dict[str, Any]:
    """Check all results of a digits job; return its result."""
    result = lab.saved(job)
    assert result["state"] == "completed"
    assert result["metrics"]["test_accuracy"] >= 0.95
    training = [r for r in result["ranks"] if r["task"].split("-")[0] in ("chief", "worker")]
    hashes = {rank["weights_sha256"] for rank in training}
    assert len(hashes) == 1, result["ranks"]
    assert len(hashes.pop()) == 64
    assert all(rank["exit_code"] == 0 for rank in training)
    folder = lab.runs_dir / job
    for rank in training:
        assert (folder / "logs" / f"{rank['task']}.log").stat().st_size > 0
        assert (folder / "progress" / f"{rank['task']}.jsonl").stat().st_size > 0
    assert call(tf_python, _accuracy, folder / "model/model.keras", project=False) >= 0.95
    return result
