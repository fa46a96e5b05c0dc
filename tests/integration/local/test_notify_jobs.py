"""What a command and a webhook are told while real jobs run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.hook import TOKEN, Hook
from tests.support.jobs import PLAIN
from tests.support.lab import Lab

Labs = Callable[..., Lab]


def told(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return what the command was told, once that is so much."""
    deadline = time.monotonic() + 60
    while len(found := [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]) < (
        count
    ):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return sorted(found, key=lambda event: event["time"])


def test_a_job_tells_of_every_event_and_of_no_secret(
    local_lab: Labs, tmp_path: Path, hook: Hook
) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    script = tmp_path / "script" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "import json, os, time\n"
        "with open(os.environ['TRAIN_PROGRESS_FILE'], 'a') as stream:\n"
        "    stream.write(json.dumps({'step': 3, 'metrics': {'accuracy': 0.5}}) + '\\n')\n"
        "print('login with', os.environ['API_TOKEN'], flush=True)\n"
        "time.sleep(1)\n"
        "if os.environ['TRAIN_ATTEMPT'] == '1':\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    lab = local_lab(worker=1)
    run = lab.run(
        *("--job", "night", "--script", str(script)),
        train_job_environment={"API_TOKEN": "hunter2-is-secret"},
        train_job_max_restarts=1,
        train_job_restart_delay=0,
        train_job_notify_command=f"cat > {folder}/$TRAIN_EVENT.json",
        train_job_notify_webhook=hook.url,
    )
    assert run.code == 0, run.error
    events = told(folder, 4)
    assert [event["event"] for event in events] == ["start", "failure", "restart", "end"]
    assert [event["attempt"] for event in events] == [1, 1, 2, 2]
    start, failure, _, end = events
    assert (start["state"], start["hosts"], start["job"]) == ("starting", ["worker0"], "night")
    assert (failure["state"], failure["root_cause"]) == ("failed", "worker-0")
    assert "was killed by SIGKILL (signal 9)" in failure["message"]
    assert "login with ***" in failure["message"]
    assert (end["state"], end["metrics"]) == ("completed", {"accuracy": 0.5})
    hook.wait_for(4)
    assert sorted(event["event"] for event in hook.requests) == sorted(e["event"] for e in events)
    assert "hunter2" not in json.dumps(hook.requests)
    for path in folder.iterdir():
        assert "hunter2" not in path.read_text()
    assert TOKEN not in (lab.runs_dir / "night/ansible.log").read_text()
    assert TOKEN not in (lab.runs_dir / "night/manifest.json").read_text()


def test_the_end_is_told_where_the_job_cannot_be_started_again(
    local_lab: Labs, tmp_path: Path
) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    script = tmp_path / "script" / "main.py"
    script.parent.mkdir()
    script.write_text(f"import os; os.unlink({str(python)!r}); os.kill(os.getpid(), 9)\n")
    lab = local_lab(worker=1)
    run = lab.run(
        *("--job", "night", "--script", str(script)),
        train_job_python=str(python),
        train_job_max_restarts=3,
        train_job_restart_delay=0,
        train_job_host_wait=0,
        train_job_notify_command=f"cat > {folder}/$TRAIN_EVENT.json",
    )
    assert run.code == 1, run.result
    failure, end = told(folder, 3)[1:]
    assert (failure["event"], end["event"], end["state"]) == ("failure", "end", "failed")
    for message in (end["message"], run.result["message"], lab.saved("night")["message"]):
        assert "was killed by SIGKILL (signal 9)" in message
        assert "could not be started again: " in message
        assert f"there is no interpreter {python}" in message


def test_a_notification_that_fails_is_a_warning(local_lab: Labs) -> None:
    lab = local_lab()
    done = lab.playbook(
        "train.yml",
        train_job_id="night",
        train_job_script=str(PLAIN),
        train_job_notify_command="echo the mailbox is full; exit 7",
        train_job_notify_webhook=f"http://127.0.0.1:1/{TOKEN}",
    )
    assert done.returncode == 0, done.stdout
    shown = " ".join(done.stdout.split())
    assert "job night completed; its results are in" in shown
    assert "end: train_job_notify_command exited with code 7: the mailbox is full" in shown
    assert "train_job_notify_webhook: 127.0.0.1 cannot be reached: Connection refused" in shown
    assert TOKEN not in done.stdout
    assert lab.saved("night")["state"] == "completed"
    log = (lab.runs_dir / "night/notify.log").read_text()
    for event in ("start", "end"):
        assert f"{event}: train_job_notify_command exited with code 7" in log
