"""Tests the process that runs a command on the control node, and ends it completely."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from train.gang import REPOSITORY, local_command
from train.gang.local_command import LocalCommand


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "replace.log"


def request(log: Path, command: str, timeout: float = 60.0, **about: str) -> Any:
    heading = {"log": str(log), "heading": "replacing w1", "timeout": timeout}
    return {"command": command, "environment": {**os.environ, **about}, **heading}


def outcome(log: Path, command: str, timeout: float = 60.0, **about: str) -> str:
    """Run a command to its end and return its problem."""
    running = LocalCommand(request(log, command, timeout, **about))
    wait_until(lambda: running.is_over, "the command ends", 30)
    return running.problem()


def is_gone(pid_file: Path) -> bool:
    """Return whether a process has ended, or is a zombie."""
    with contextlib.suppress(OSError):
        return not Path(f"/proc/{pid_file.read_text().strip()}/cmdline").read_bytes()
    return True


def test_the_output_is_in_a_private_file(log: Path) -> None:
    log.touch(0o600)
    log.write_text("earlier\n")
    assert (
        outcome(log, 'echo "$TRAIN_LOST_HOSTS in $PWD"; echo bad >&2', TRAIN_LOST_HOSTS="a 'b'")
        == ""
    )
    earlier, began, *lines, ended = log.read_text().splitlines()
    assert (earlier, lines) == ("earlier", [f"a 'b' in {REPOSITORY}", "bad"])
    assert began.endswith(" replacing w1")
    assert ended.endswith(" the command has ended")
    log.unlink()
    outcome(log, "true")
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 3", "exited with code 3"),
        ("kill -KILL $$", "was killed by signal 9"),
        ("no-such-program-here", "exited with code 127"),
    ],
)
def test_a_command_that_fails(log: Path, command: str, problem: str) -> None:
    assert outcome(log, command) == problem
    assert log.read_text().endswith(f" the command {problem}\n")


def test_a_link_is_not_followed(log: Path, tmp_path: Path) -> None:
    log.symlink_to(tmp_path / "another")
    assert outcome(log, f"touch {tmp_path}/ran").startswith("was not started: ")
    assert not (tmp_path / "another").exists()
    assert not (tmp_path / "ran").exists()


def test_the_command_is_in_no_argument_of_the_process_that_runs_it(log: Path) -> None:
    running = LocalCommand(request(log, "sleep 600; true 'token-of-mine'"))
    try:
        words = Path(f"/proc/{running._process.pid}/cmdline").read_bytes()
        assert b"token-of-mine" not in words
    finally:
        running.end()


def test_processes_in_other_sessions_end_at_the_limit(log: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"setsid sh -c 'trap : TERM; echo $$ > {pid}; sleep 600; sleep 600' & wait"
    problem = outcome(log, script, timeout=1.0)
    assert problem == "did not end within 1 s (train_job_replace_timeout)"
    assert is_gone(pid)


def test_a_command_that_is_ended_gets_sigterm_first(log: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo saved; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    running = LocalCommand(request(log, script))
    wait_until(ready.exists, "the command runs")
    running.end()
    assert running.problem() == "was stopped"
    assert "saved\n" in log.read_text()


def test_processes_in_the_background_continue_after_the_command(log: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert outcome(log, f"sleep 600 & echo $! > {pid}") == ""
    assert not is_gone(pid)
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_the_command_ends_with_the_process_that_started_it(log: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"""
        from train.gang.local_command import LocalCommand
        import time
        LocalCommand({request(log, f"setsid sleep 600 & echo $! > {pid}; wait")!r})
        time.sleep(600)
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, cwd=REPOSITORY) as starter:
        wait_until(lambda: pid.exists() and pid.read_text(), "the command runs")
        starter.kill()
    wait_until(lambda: is_gone(pid), "the command ends", 30)


def test_commands_have_the_environment_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"PATH": "/usr/bin:/bin", "ANSIBLE_FORKS": "3", "HOME": "/home/me"}
    caller = local_command.caller_environment(before)
    assert "/home/me" not in caller, "only what Ansible needs is passed on"
    for name in [name for name in os.environ if name.startswith(("ANSIBLE_", "RUNNER_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "PATH": "/tmp/runner/bin:/usr/bin:/bin",
        "ANSIBLE_FORKS": "3",
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        "AWX_ISOLATED_DATA_DIR": "/tmp/runner",
        "HOME": "/home/me",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(local_command, "_caller", caller)
    found = local_command.environment()
    assert found["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert {n: v for n, v in found.items() if n.startswith(("ANSIBLE", "AWX"))} == {
        "ANSIBLE_FORKS": "3"
    }
    assert found["HOME"] == "/home/me"


def test_the_callers_environment_is_not_passed_on() -> None:
    program = "import os, train.gang.local_command as c; print(c.CALLER in os.environ, c._caller)"
    variables = {**os.environ, local_command.CALLER: "{}"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=REPOSITORY, env=variables, capture_output=True, check=True)
    assert done.stdout == b"False {}\n"


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("ansible-playbook playbooks/gcp.yml -e state=present", ""),
        ("playbooks/gcp.yml", "playbooks/gcp.yml"),  # it is not a program
        ("no-such-program -x", "no-such-program"),
        ("no-such-program;true", "no-such-program"),
        ("/usr/bin/env true && no-such-program", ""),
        ("cd /tmp && ./anything", ""),
        ("if true; then true; fi", ""),
        ("A=1 no-such-program", ""),
        ("(no-such-program)", ""),
        ("", ""),
    ],
)
def test_a_missing_program_is_found_before_the_start(command: str, missing: str) -> None:
    assert local_command.missing_program(command) == missing
