"""The files and ports that other users can access, during a job and afterwards."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs import PLAIN, plain, train, training, write_script
from tests.support.lab import Lab, Labs
from train.host import processes

TOKEN = "hunter2-is-secret"
#: Prints the token in several ways, then raises an exception with the token in its message.
FAILING = """
import json, os, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
address = config["cluster"]["worker"][config["task"]["index"]]
server = socket.create_server(("", int(address.rpartition(":")[2])))
token = os.environ["API_TOKEN"]
print("begin", token, flush=True)
print("x" * 100_000 + token * 20_000, flush=True)
raise RuntimeError(f"login with {token} was refused")
"""


@pytest.fixture
def lab(local_lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o755)
    made = local_lab()
    monkeypatch.setenv("TMPDIR", str(folder))
    return made


def readable_by_others(folder: Path) -> Iterator[str]:
    """Yield the paths at and below ``folder`` whose modes let other users list or read them."""
    mode = folder.lstat().st_mode
    if stat.S_ISDIR(mode):
        if mode & stat.S_IROTH:
            yield str(folder)
        if mode & stat.S_IXOTH:
            for path in folder.iterdir():
                yield from readable_by_others(path)
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        yield str(folder)


def listening_ports(pids: set[int]) -> set[int]:
    """Return the TCP ports on which some processes listen."""
    opened = {path for pid in pids for path in processes.opened(pid)}
    tables = processes.read_text("/proc/net/tcp") + processes.read_text("/proc/net/tcp6")
    rows = [line.split() for line in tables.splitlines() if "sl" not in line.split()]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in opened
    }


def files_with(text: str, *folders: Path) -> list[str]:
    """Return the files in some folders that contain a text."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_others_read_nothing_of_a_job_and_reach_only_its_ranks(lab: Lab, tmp_path: Path) -> None:
    command = plain(lab, "night", "--steps 200", train_job_environment={"API_TOKEN": TOKEN})
    command.wait_for(training)
    for when in ("running", "ended"):
        # The folder of a machine's jobs shows their names, and each rank has a lease for its port.
        shown = {str(lab.root), str(lab.root / "jobs")}
        assert set(readable_by_others(lab.root)) <= shown, when
        assert list(readable_by_others(lab.runs_dir)) == [], when
        assert set(readable_by_others(tmp_path / "tmp")) <= {str(tmp_path / "tmp")}, when
        if when == "running":
            running = processes.snapshot()
            here = processes.descendants([command.process.pid], running)
            ranks = {pid for pid, _ in processes.marked("TRAIN_RANK_DIR")}
            assert listening_ports({command.process.pid, *here}) <= listening_ports(ranks)
            command.process.send_signal(signal.SIGINT)
            command.end()
            assert train(*lab.words("stop", "night")).returncode == 0


def test_all_may_read_a_job_that_is_opened(lab: Lab) -> None:
    run = lab.run("--script", str(PLAIN), "--job", "open", train_job_readable_by="all")
    assert run.code == 0, run.error
    shown = set(readable_by_others(lab.runs_dir))
    assert {str(lab.runs_dir / "open" / name) for name in ("result.json", "report.html")} <= shown


def test_a_token_in_an_exception_reaches_no_file_of_the_control_node(
    lab: Lab, tmp_path: Path
) -> None:
    script = write_script(tmp_path, FAILING)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    told = f"cat > {tmp_path}/told-$TRAIN_EVENT"
    run = lab.run(
        *("--script", script, "--job", "night", "-vvv", "--mlflow", uri),
        train_job_environment={"API_TOKEN": TOKEN},
        train_job_notify_command=told,
    )
    assert run.result["state"] == "failed"
    assert "RuntimeError: login with *** was refused" in run.result["message"]
    assert len(list(tmp_path.glob("told-*"))) == 3
    assert (tmp_path / "mlartifacts").is_dir()
    assert "refused" in (lab.runs_dir / "night/logs/worker-0.log").read_text()
    kept = [path for path in tmp_path.iterdir() if path not in (lab.root, tmp_path / "script")]
    assert files_with(TOKEN, *kept) == files_with(TOKEN, tmp_path / "inventory") == []
    status = train(*lab.words("status", "--json", "night"))
    assert TOKEN not in status.stdout + status.stderr


def test_after_a_kill_the_next_command_leaves_no_secret(lab: Lab, tmp_path: Path) -> None:
    killed = 0
    for delay in [float(part) for part in os.environ.get("KILL_DELAYS", "0.5 0.8 1.6").split()]:
        command = plain(lab, f"job-{delay}", train_job_environment={"API_TOKEN": TOKEN})
        time.sleep(delay)
        if command.process.poll() is None:
            killed += 1
        command.kill()
        train("report", f"job-{delay}")
        assert files_with(TOKEN, tmp_path / "tmp", lab.runs_dir) == []
        assert not list((tmp_path / "tmp").glob("train-runner-*"))
    assert killed
