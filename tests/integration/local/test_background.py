"""Jobs that are watched in the background: without a terminal, and next to other commands."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.job_folders import jobs_in
from tests.support.jobs import PLAIN, ansible_of, job_processes, rank_pid, train, training
from tests.support.lab import REPOSITORY, Command, Lab, Labs, environment
from train.cli import watch_lock
from train.host import processes

QUICK: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.1}
SECRET = "hunter2-is-secret"


class Terminal:
    """A terminal in which ``python -m train`` runs as its only program."""

    def __init__(self, *words: str) -> None:
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.chdir(REPOSITORY)
            os.execve(sys.executable, [sys.executable, "-m", "train", *words], environment())
        self.shown = ""

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self._screen, 65_536).decode(errors="replace")
            except OSError:
                pytest.fail(f"no {pattern!r} in: {self.shown}")

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self) -> int:
        """Wait for the end of the program, close the terminal, and return the exit code."""
        with contextlib.suppress(OSError):  # the end of the program
            while data := os.read(self._screen, 65_536):
                self.shown += data.decode(errors="replace")
        return self.close()

    def close(self) -> int:
        """Close it, which sends SIGHUP to its processes; return how the program ended."""
        os.close(self._screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def words_of(lab: Lab, job: str, arguments: str, *options: str, **variables: Any) -> list[str]:
    chosen = ("--job", job, "--script", str(PLAIN), "--detach", *options)
    return lab.words("run", *chosen, arguments=arguments.split(), **variables)


def watcher(lab: Lab, job: str) -> dict[str, Any]:
    """Return the record of the process that watches a job."""
    found = watch_lock.watcher_of(lab.runs_dir / job)
    assert found, "no process watches the job"
    return found


def ended(lab: Lab, job: str) -> dict[str, Any]:
    """Return the result of a job, once the process that watches it has ended."""
    folder, pid = lab.runs_dir / job, (watch_lock.watcher_of(lab.runs_dir / job) or {}).get("pid")
    wait_until(lambda: watch_lock.watcher_of(folder) is None, (folder / "watch.log").read_text)
    wait_until(lambda: pid is None or processes.start_time(pid) is None, "the end of the process")
    return lab.saved(job)


def notified(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def test_a_watch_survives_its_terminal_restarts_the_job_and_notifies(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, fast, told = local_lab(), tmp_path / "fast", tmp_path / "told"
    told.mkdir()
    words = words_of(
        lab,
        "night",
        f"--steps 2000 --fast {fast} --slow-attempts 1",
        train_job_notify_command=f"cat > {told}/$TRAIN_EVENT.json",
        train_job_environment={"API_TOKEN": SECRET},
        **QUICK,
    )
    terminal = Terminal(*words)
    assert terminal.end() == 0, terminal.shown
    assert "all ranks have started" in terminal.shown
    record = watcher(lab, "night")
    assert record["background"] is True
    assert str(record["pid"]) in terminal.shown
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in processes.read("/proc", str(record["pid"]), name)
    assert os.getsid(record["pid"]) not in (os.getsid(0), terminal.pid)
    log = lab.runs_dir / "night/watch.log"
    assert log.stat().st_mode & 0o777 == 0o600

    os.kill(record["pid"], signal.SIGHUP)
    os.kill(rank_pid(lab.root, "night", "worker-1"), signal.SIGKILL)
    saved = ended(lab, "night")
    assert (saved["state"], saved["attempts"]) == ("completed", 2), log.read_text()
    assert notified(told) == ["end", "failure", "restart", "start"]
    assert SECRET not in log.read_text()
    assert "job night completed after 2 attempts" in log.read_text()
    assert (lab.runs_dir / "night/report.html").exists()
    assert (job_processes(lab.root), ansible_of(lab)) == ([], [])


def test_a_terminal_that_is_lost_during_the_start_does_not_end_it(local_lab: Labs) -> None:
    lab = local_lab()
    terminal = Terminal(*words_of(lab, "early", "--steps 20"))
    terminal.read_until(r"job early")
    assert not (lab.runs_dir / "early/events.jsonl").exists(), "the ranks have started already"
    assert terminal.close() != 0
    assert watcher(lab, "early")["background"] is True
    assert ended(lab, "early")["state"] == "completed"


def test_attach_follows_a_watch_and_takes_over_when_it_is_killed(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, fast = local_lab(), tmp_path / "fast"
    arguments = f"--steps 2000 --fast {fast} --slow-attempts 1"
    started = train(*words_of(lab, "night", arguments, **QUICK))
    assert started.returncode == 0, started.stderr
    pid = watcher(lab, "night")["pid"]
    again = train(*lab.words("attach", "--detach", "night", **QUICK))
    assert (again.returncode, f"pid {pid} on " in again.stderr) == (0, True), again.stderr
    commands = [Command(*lab.words("attach", "--json", "night", **QUICK)) for _ in range(2)]
    for command in commands:
        first = command.wait_for(lambda event: event["event"] == "notice")
        assert (first["kind"], f"pid {pid} " in first["text"]) == ("watched", True)
        command.wait_for(training)
    os.kill(pid, signal.SIGKILL)
    os.kill(rank_pid(lab.root, "night", "worker-1"), signal.SIGKILL)
    runs = [command.end() for command in commands]
    assert [(run.code, run.result["state"]) for run in runs] == [(0, "completed")] * 2
    took = [e for run in runs for e in run.events if "watches the job now" in e.get("text", "")]
    assert len(took) == 1, "both commands watched the job"
    assert lab.saved("night")["attempts"] == 2
    states = [json.loads(path.read_text()) for path in lab.root.rglob("state.json")]
    assert not [state["reason"] for state in states if "another attempt" in state["reason"]]
    assert job_processes(lab.root) == []


def test_a_job_in_the_background_is_stopped(local_lab: Labs) -> None:
    lab = local_lab()
    started = train(*words_of(lab, "night", "--steps 2000", "--json"))
    last = json.loads(started.stdout.splitlines()[-1])
    assert (started.returncode, last["state"]) == (0, "detached"), started.stderr
    follower = Command(*lab.words("attach", "--json", "night"))
    follower.wait_for(training)
    refused = train(*lab.words("restart", "night"))
    assert (refused.returncode, "is still running" in refused.stderr) == (2, True)
    assert train(*lab.words("status", "night")).returncode == 0
    stopped = train(*lab.words("stop", "night"))
    assert stopped.returncode == 0, stopped.stderr
    run = follower.end()
    assert (run.code, run.result["state"]) == (3, "stopped"), run.error
    assert ended(lab, "night")["state"] == "stopped"


@pytest.mark.soak
def test_a_job_is_restarted_in_the_background(local_lab: Labs) -> None:
    lab = local_lab()
    first = train(*words_of(lab, "night", "--steps 2000 --fail worker-1 --attempts 1"))
    assert first.returncode == 1, first.stderr
    restarted = train(*lab.words("restart", "--detach", "night"))
    assert restarted.returncode == 0, restarted.stderr
    follower = Command(*lab.words("attach", "--json", "--on-interrupt", "stop", "night"))
    follower.wait_for(training)
    follower.process.send_signal(signal.SIGINT)
    assert follower.end().code == 3
    assert (ended(lab, "night")["state"], lab.saved("night")["attempts"]) == ("stopped", 2)


@pytest.mark.soak
def test_a_start_that_fails_or_is_interrupted_leaves_no_watch(local_lab: Labs) -> None:
    lab = local_lab()
    failed = train(*words_of(lab, "bug", "--fail worker-1"))
    assert (failed.returncode, "ModuleNotFoundError" in failed.stdout) == (1, True)
    assert watch_lock.watcher_of(lab.runs_dir / "bug") is None
    refused = train(*words_of(lab, "bare", "", train_job_python="/nowhere/python"))
    assert (refused.returncode, "no such interpreter" in refused.stdout) == (2, True)
    unknown = train(*lab.words("attach", "--detach", "nobody"))
    assert (unknown.returncode, "no host has job nobody" in unknown.stdout) == (2, True)

    blocker = train(*words_of(lab, "first", "--steps 2000"))
    assert blocker.returncode == 0
    options = ("--json", "--on-interrupt", "stop")
    waiting = Command(*words_of(lab, "second", "", *options, train_job_queue_timeout=60))
    waiting.wait_for(lambda event: event.get("phase") == "waiting")
    waiting.process.send_signal(signal.SIGINT)
    run = waiting.end()
    assert (run.code, run.result["message"]) == (3, "nothing was started")
    assert train(*lab.words("stop", "first")).returncode == 0
    ended(lab, "first")
    assert sorted(path.name for path in lab.runs_dir.iterdir()) == ["bug", "first"]
    assert jobs_in(lab.root) == ["bug", "first"]


def test_a_password_reaches_the_background(local_lab: Labs, tmp_path: Path) -> None:
    """The variables of the job are encrypted, and the password is typed at a prompt."""
    lab = local_lab(worker=1)
    password, vault = tmp_path / "password", tmp_path / "secret.yml"
    password.write_text("open sesame")
    vault.write_text(json.dumps({"train_job_environment": {"SECRET": SECRET}}))
    program = str(Path(sys.executable).parent / "ansible-vault")
    encrypt = [program, "encrypt", "--vault-password-file", str(password), str(vault)]
    subprocess.run(encrypt, check=True, env=environment(), capture_output=True)
    terminal = Terminal(*words_of(lab, "vault", "--steps 30", "-J", "-e", f"@{vault}"))
    terminal.read_until("Vault password: ")
    terminal.type("open sesame\n")
    assert terminal.end() == 0, terminal.shown
    saved = ended(lab, "vault")
    assert saved["state"] == "completed", saved
    assert "secret is set" in (lab.runs_dir / "vault/logs/worker-0.log").read_text()
