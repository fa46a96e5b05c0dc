"""A watch in the background, and what the command in the terminal knows of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.cli import background, commands
from train.cli.background import BackgroundJob, Channel
from train.cli.job import Event, Result


def start(then: str, *lines: Any) -> subprocess.Popen[bytes]:
    """Start a process that reports lines and then runs a statement."""
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    code = f"import os, sys, time; os.write(1, {text.encode()!r}); {then}"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    return child


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    ranks = [{"task": "worker-0"}, {"task": "worker-1"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"ranks": ranks}))
    return tmp_path


def of(then: str, run_dir: Path, *events: Event) -> BackgroundJob:
    first = {"job": "night", "run_dir": str(run_dir)}
    job = BackgroundJob.of(start(then, first, *map(asdict, events)))
    assert job is not None
    assert (job.name, job.run_dir) == ("night", run_dir)
    return job


def rank(task: str, phase: str) -> Event:
    return Event("rank", "night", task, {"phase": phase})


def phases_until(job: BackgroundJob, count: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < count or job._rest:
        found += job.events()
    return found


SLEEP = "sys.stdin.read()"
BOTH = [rank("worker-0", "running"), rank("worker-1", "running")]
RESTART = Event("restart", "night", "worker-1", {"attempt": 2})


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (BOTH, "detached"),
        ([rank("worker-0", "completed"), rank("worker-1", "running")], "detached"),
        (BOTH[:1], None),
        ([*BOTH, rank("worker-1", "starting")], None),
        ([*BOTH[:1], rank("worker-1", "waiting")], None),
        ([*BOTH[:1], rank("worker-1", "failed")], None),  # the verdict follows
        ([*BOTH[:1], rank("worker-1", "failed"), RESTART], None),
        ([*BOTH[:1], rank("worker-1", "failed"), RESTART, *BOTH], "detached"),
        ([Event("task", "night", "Plan", {}, "checking the hosts")], None),
    ],
)
def test_a_gang_has_started_when_all_of_its_ranks_have(
    events: list[Event], state: str | None, run_dir: Path
) -> None:
    job = of(SLEEP, run_dir, *events)
    assert phases_until(job, len(events)) == events
    [*job.events(0.0)]
    assert (job.result.state if job.result else None) == state
    job._child.communicate()


def test_a_failed_rank_without_which_the_job_continues_is_not_awaited_forever(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_VERDICT_S", 0.0)
    job = of(SLEEP, run_dir, BOTH[0], rank("worker-1", "failed"))
    phases_until(job, 2)
    assert job.result is not None
    assert job.result.state == "detached"
    names = ("attach", "logs", "stop")
    assert all(f" {name} " in job.result.message for name in names), job.result.message
    job._child.communicate()


def test_a_job_that_ends_at_once_has_its_result(run_dir: Path) -> None:
    ended = Result("night", "failed", "bad", {}, [], Path(), doubts=["d"])
    line = {"result": {**asdict(ended), "run_dir": ""}}
    first = {"job": "night", "run_dir": str(run_dir)}
    job = BackgroundJob.of(start("pass", first, asdict(BOTH[0]), asdict(BOTH[1]), line))
    assert job is not None
    while job.result is None:
        [*job.events()]
    assert (job.result.state, job.result.message) == ("failed", "bad")
    assert (job.result.run_dir, job.result.doubts) == (run_dir, ["d"])
    assert [*job.events()] == []


def test_a_process_that_dies_leaves_the_job(run_dir: Path) -> None:
    job = of("os.kill(os.getpid(), 9)", run_dir)
    while job.result is None:
        [*job.events()]
    assert job.result.state == "unwatched"
    assert "ended with -9: see " in job.result.message
    assert BackgroundJob.of(start("sys.exit(2)")) is None


def test_a_process_that_no_longer_reports_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_END_S", 0.1)
    job = of(f"os.close(1); {SLEEP}", run_dir)
    while job.result is None:
        [*job.events()]
    assert job.result.state == "left"
    assert f"pid {job._child.pid} in the background continues" in job.result.message
    job._child.communicate()


def test_a_stop_is_passed_on(run_dir: Path) -> None:
    job = of(SLEEP, run_dir)
    job.request_stop()
    job.close()
    assert job._child.wait(10) == -commands.STOP


SCRIPT = """
import os, signal, sys
from argparse import Namespace
from pathlib import Path
from train.cli import background, commands
from train.cli.job import Event, Result

class Job:
    name, run_dir, result = "night", Path(sys.argv[1]), None
    def note_background(self): pass
    def events(self, timeout=0):
        yield Event("rank", "night", "worker-0", {"phase": "running", "reason": "",
            "progress": {"step": 1}, "last_line": "", "host": "a", "age": None})
        yield Event("notice", "night", "", {"text": "two\\nlines"})
        os.kill(os.getpid(), signal.SIGHUP)
        if not self.result and os.environ["SIGNAL"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        elif not self.result:
            self.end("completed")
    def end(self, state):
        self.result = Result("night", state, "done", {}, [], self.run_dir)
    def request_stop(self): self.end("stopped")
    def leave(self): self.end("left")
    def close(self): pass

args = Namespace(channel=background.Channel(), mlflow="", on_interrupt="ask", command="run")
print("before")
code = commands.watch(Job(), args)
print("after")
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("signum", "state", "code"),
    [("", "completed", 0), (str(int(commands.STOP)), "stopped", 3), ("15", "left", 130)],
)
def test_the_background_writes_to_the_jobs_folder_and_reports_to_the_terminal(
    signum: str, state: str, code: int, run_dir: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(run_dir)],
        env={**os.environ, "SIGNAL": signum},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, "before\n")
    first, *events, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == {"job": "night", "run_dir": str(run_dir)}
    assert {event["kind"] for event in events} == {"rank", "notice"}
    assert (last["result"]["state"], last["result"]["message"]) == (state, "done")
    log = run_dir / "watch.log"
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text()
    assert text.count("worker-0 on a: running") == 1, "progress is left out"
    assert " two\n" in text
    assert f" job night {state}: done\n" in text
    assert text.endswith("after\n")


def test_a_terminal_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel.__new__(Channel)
    reader, channel._pipe = os.pipe()
    os.set_blocking(channel._pipe, False)
    for _ in range(100):
        channel.send({"text": "x" * 4096})
    assert channel._pipe == -1
    channel.send({})
    assert len(os.read(reader, 1 << 20)) > 4096
    os.close(reader)
    reader, channel._pipe = os.pipe()
    os.close(reader)
    channel.send({})  # nobody reads it
    assert channel._pipe == -1


@pytest.mark.parametrize(
    ("linger", "code", "scoped"), [("yes", 0, True), ("yes", 1, False), ("no", 0, False)]
)
def test_the_watch_leaves_the_login_session_if_lingering_is_enabled(
    linger: str, code: int, scoped: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("loginctl", f"echo Linger={linger}"), ("systemd-run", f"exit {code}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert bool(background.scope_words()) is scoped
    monkeypatch.setenv("XDG_SESSION_ID", "1")
    assert background._ends_at_logout() is (linger == "yes")  # the same answer here
    monkeypatch.delenv("XDG_SESSION_ID")
    assert not background._ends_at_logout()
    monkeypatch.setenv("PATH", "/nowhere")
    assert background.scope_words() == []


def test_secrets_are_passed_over_a_pipe(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child has the parsed command line, and its words have only the command and the job."""
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/words\ncat > {tmp_path}/request\nexit 2\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(background, "sys", SimpleNamespace(executable=str(program), argv=["train"]))
    monkeypatch.setattr(background, "scope_words", list)
    args = Namespace(command="run", job="night", variables=["a=swordfish"])
    assert background.start(args, {"a": "swordfish"}) == 2
    assert "swordfish" not in (tmp_path / "words").read_text()
    assert (tmp_path / "words").read_text().splitlines()[-2:] == ["run", "night"]
    assert b"swordfish" in (tmp_path / "request").read_bytes()
