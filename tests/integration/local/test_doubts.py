"""Jobs that complete although they have not trained as intended."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

from tests.support.jobs import write_script
from tests.support.lab import Lab, Labs, Run

#: Opens the rank's port, and writes a progress record at each step.
BEGIN = """\
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
server = socket.create_server(("", int(config["cluster"][kind][index].rpartition(":")[2])))
def step(number, steps):
    time.sleep(0.1)
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        record = {"phase": "training", "step": number, "steps": steps, "loss": 1 / number}
        stream.write(json.dumps(record) + "\\n")
"""


def run(lab: Lab, folder: Path, text: str, *options: str, **variables: Any) -> Run:
    lab.doubtful = True
    return lab.run("--script", write_script(folder, BEGIN + text), *options, **variables)


def page_of(lab: Lab, job: str) -> str:
    return (lab.runs_dir / job / "report.html").read_text()


def test_a_rank_leaves_early_and_ci_notices(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    text = "for n in range(1, 11):\n    step(n, 10)\n    if n == 3 and index: os._exit(0)\n"
    done = run(lab, tmp_path, text, "--job", "early", "--strict")
    assert done.code == 6, done.error
    assert done.result["state"] == "completed"
    (doubt,) = done.result["doubts"]
    assert doubt.startswith("worker-1 (worker1) ended with exit code 0 after step 3 of 10")
    assert lab.saved("early")["doubts"] == [doubt]
    assert doubt in html.unescape(page_of(lab, "early"))
    again = lab.playbook("attach.yml", train_job_id="early", train_job_strict=True)
    assert again.returncode == 2
    assert "train_job_strict" in again.stdout
    assert lab.playbook("attach.yml", train_job_id="early").returncode == 0


def test_a_rank_that_does_not_end_is_named_with_what_runs_and_ended_if_wanted(
    local_lab: Labs, tmp_path: Path
) -> None:
    text = """
import subprocess, threading
def monitor():
    while True: time.sleep(1)
threading.Thread(target=monitor, name="monitor").start()
if index: subprocess.Popen(["sleep", "600"])
for n in range(1, 6): step(n, 5)
"""
    lab, limits = local_lab(), {"train_job_hang_min_seconds": 6, "train_job_exit_timeout": 14}
    done = run(lab, tmp_path, text, "--job", "lingers", **limits)
    assert (done.code, done.result["state"]) == (0, "completed"), done.error
    notices = {e["task"]: e["text"] for e in done.events if e["event"] == "notice"}
    assert set(notices) == {"worker-0", "worker-1"}
    name = "thread 'monitor'" if sys.version_info >= (3, 14) else "1 other thread"
    assert f"s ago and has not exited; still running: {name}" in notices["worker-0"]
    assert "(sleep 600)" in notices["worker-1"]
    doubts = done.result["doubts"]
    assert len(doubts) == 2
    assert "train_job_exit_timeout" in doubts[0]
    assert "in monitor" in (lab.root / "jobs/lingers/worker-0/stacks.txt").read_text()


def test_a_daemon_is_noticed(local_lab: Labs, tmp_path: Path) -> None:
    text = """
if os.fork(): os._exit(0)
os.setsid()
for n in range(1, 51): step(n, 50)
"""
    done = run(local_lab(), tmp_path, text, "--job", "daemon")
    assert done.code == 0, done.error
    assert any("still running" in doubt for doubt in done.result["doubts"])


def test_files_that_stay_on_hosts_are_named_or_fetched(local_lab: Labs, tmp_path: Path) -> None:
    text = """
step(1, 1)
os.mkdir("outputs")
for name in ("model.h5", "outputs/table.csv"):
    with open(name, "w") as stream: stream.write(f"of {index}")
os.makedirs(sys.argv[1])
with open(sys.argv[1] + "/weights", "w") as stream: stream.write(sys.argv[2])
"""
    lab = local_lab()
    lab.variables["train_job_args"] = ["$TRAIN_MODEL_DIR", "${HOME} $TRAIN_JOB $TRAIN_OTHER"]
    done = run(lab, tmp_path, text, "--job", "left", "--strict")
    assert (done.code, done.result["doubts"]) == (0, []), done.error
    place = lab.root / "jobs/left/worker-1/code"
    assert done.result["notes"][1] == (
        f"2 files of worker-1 that look like results remain in worker1:{place} (8 B: "
        "model.h5, outputs/table.csv): let the script write results to "
        "$TRAIN_MODEL_DIR, or list these files in train_job_collect"
    )
    kept = (lab.runs_dir / "left/model/weights").read_text()
    assert kept == "${HOME} left $TRAIN_OTHER"

    script = str(tmp_path / "script/main.py")
    wanted = ["out*", "*.h5", "../*.json"]
    done = lab.run("--script", script, "--job", "fetched", train_job_collect=wanted)
    assert (done.code, done.result["notes"]) == (0, []), done.error
    folder = lab.runs_dir / "fetched/collected"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {f"worker-{n}/{f}" for n in "01" for f in ("model.h5", "outputs/table.csv")}
    assert (folder / "worker-1/model.h5").read_text() == "of 1"
    done = lab.run(
        *("--script", script, "--job", "large"),
        train_job_collect=wanted,
        train_job_results_limit_files=1,
    )
    assert "the files of worker-0 (worker0) were not fetched: " in done.result["notes"][0]


def test_workers_train_alongside_parameter_servers_without_a_chief(
    local_lab: Labs, tmp_path: Path
) -> None:
    text = "if kind == 'ps': time.sleep(600)\nfor n in range(1, 11): step(n, 10)\n"
    done = run(local_lab(worker=2, ps=1), tmp_path, text, "--job", "served")
    assert (done.code, done.result["doubts"]) == (0, []), done.error
    phases = {rank["task"]: rank["phase"] for rank in done.result["ranks"]}
    assert phases == {"worker-0": "completed", "worker-1": "completed", "ps-0": "stopped"}
    assert [e["kind"] for e in done.events if e["event"] == "notice"] == ["no_chief"]
