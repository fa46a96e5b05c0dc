"""A job outlives what happens to those that watch it: a full disk, odd records, two of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import jobs_in
from tests.support.jobs import PLAIN, job_processes, rank_pid, train, training
from tests.support.lab import Command, Lab

Labs = Callable[..., Lab]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a file system of 1 MiB for the runs of the control node."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "runs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_disk_of_the_control_node_is_full_and_attach_fetches_everything(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab = local_lab()
    root = Path(lab.variables["train_job_root"])
    with small_disk(tmp_path / "small") as runs:
        lab.runs_dir = runs
        command = lab.start(
            *("--job", "full", "--script", str(PLAIN)),
            arguments=["--steps", "40"],
            train_job_max_restarts=3,
        )
        command.wait_for(training)
        ballast = runs / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(1 << 21))
        run = command.end()
        states = [json.loads(p.read_text()) for p in root.glob("jobs/full/*/state.json")]
        assert [(s["phase"], s["attempt"]) for s in states] == [("completed", 1)] * 2
        assert run.code == 5, run.result
        assert "attach" in run.result["message"]
        ballast.unlink()
        attached = Command(*lab.words("attach", "--json", "full")).end()
        assert (attached.code, attached.result["state"]) == (0, "completed"), attached.error
        for rank in ("worker-0", "worker-1"):
            sent = (root / "jobs/full" / rank / "stdout.log").read_bytes()
            assert (runs / "full/logs" / f"{rank}.log").read_bytes() == sent
        assert lab.saved("full")["state"] == "completed"


def test_a_watch_that_breaks_leaves_the_job_running(local_lab: Labs) -> None:
    lab = local_lab()
    root = Path(lab.variables["train_job_root"])
    command = lab.start(*("--job", "broken", "--script", str(PLAIN)), arguments=["--steps", "100"])
    command.wait_for(training)
    # The watch is one process of Ansible's; it cannot read what it finds there any more.
    progress = lab.runs_dir / "broken" / "events.jsonl"
    progress.write_text('{"straggler": 1}\n' * 2000)
    run = command.end()
    assert run.code == 5
    assert "attach" in run.error
    assert len(job_processes(root)) >= 2
    attached = Command(*lab.words("attach", "--json", "broken")).end()
    assert (attached.code, attached.result["state"]) == (0, "completed")


LINES = [
    '{"metrics": 0.93}',
    '{"loss": ' + "9" * 400 + "}",
    '{"weights_sha256": ["a"]}',
    "[" * 5000,
    '{"step": {"a": 1}, "phase": ["\\u001b]52;c;aGk=\\u0007"]}',
    '{"phase": "\\u001b]52;c;aGk=\\u0007", "loss": NaN}',
]


def test_malformed_progress_ends_no_job_and_breaks_no_command(
    local_lab: Labs, tmp_path: Path
) -> None:
    script = tmp_path / "script" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "import os, time\n"
        f"for line in {LINES!r}:\n"
        "    with open(os.environ['TRAIN_PROGRESS_FILE'], 'a') as stream:\n"
        "        print(line, file=stream)\n"
        "    time.sleep(0.3)\n"
    )
    lab = local_lab(worker=1)
    run = lab.run("--job", "odd", "--script", str(script))
    assert (run.code, run.result["state"]) == (0, "completed"), run.error
    shown = [event for event in run.events if event["event"] == "notice"]
    assert [event["kind"] for event in shown] == ["progress"]
    assert "line 1 of its progress is passed over" in shown[0]["text"]
    for words in (["status", "odd"], ["list"], ["attach", "odd"], ["logs", "odd"]):
        done = train(*lab.words(*words))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\x1b" not in done.stdout
        assert "Traceback" not in done.stderr


def test_two_control_nodes_do_not_both_start_a_gang_again(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    other = Lab(lab.inventory, tmp_path / "elsewhere", lab.variables)
    root = Path(lab.variables["train_job_root"])
    quick: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.1}
    # The first attempt lasts until both follow it.
    arguments = ["--steps", "20", "--hang", "all", "--attempts", "1"]
    first = lab.start("--job", "shared", "--script", str(PLAIN), arguments=arguments, **quick)
    first.wait_for(training)
    second = Command(*other.words("attach", "--json", "shared", **quick))
    second.wait_for(training)
    os.kill(rank_pid(root, "shared", "worker-1"), signal.SIGKILL)
    ends = [first.end(), second.end()]
    assert [(end.code, end.result["state"]) for end in ends] == [(0, "completed")] * 2
    for folder in (lab.runs_dir, other.runs_dir):
        assert json.loads((folder / "shared/result.json").read_text())["state"] == "completed"
    # One gang was started after the first: no attempt was cut short by the other control node.
    for rank in ("worker-0", "worker-1"):
        done = sorted((root / "jobs/shared" / rank / "attempts").iterdir())
        states = [json.loads((path / "state.json").read_text()) for path in done]
        reasons = [state["reason"] for state in states]
        assert not [reason for reason in reasons if "another attempt" in reason]
    assert job_processes(root) == []
    assert jobs_in(root) == ["shared"]
