"""Which processes count as active when their script has ended.

Each test runs in a process that has adopted its descendants, as a supervisor has.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.unit.host.conftest import run

#: Starts processes in separate sessions, and prints which of them are at work.
FIND = """
import json, subprocess, sys
from train.host import leftovers, processes

leftovers.WINDOW, leftovers._CPU_S = 0.4, 0.015
processes.adopt()
words, script, session, grown = json.loads(sys.argv[1])
children = [
    subprocess.Popen([sys.executable, "-S", "-c", *word], stdout=-1, start_new_session=True)
    for word in words
]
for child in children:
    child.stdout.readline()
command = [sys.executable, "-S", "-c", *script]
try:
    print(json.dumps(leftovers.at_work(command, session, lambda: grown)))
finally:
    for child in children:
        child.kill()
"""
IDLE = "print(1, flush=True); import time; time.sleep(60)"
BUSY = "print(1, flush=True)\nwhile True: pass"


def at_work(
    *words: list[str], script: list[str] | None = None, session: int = 1, grown: bool = False
) -> Any:
    """Return the arguments of the processes that are found at work."""
    given = json.dumps([words, script or ["x"], session, grown])
    done = run(FIND, given, stdout=subprocess.PIPE)
    return [command.partition(" -S -c ")[2] for command in json.loads(done.stdout)]


def test_a_process_that_computes_is_at_work_and_a_sleeping_one_is_not() -> None:
    assert at_work([BUSY, "busy"], [IDLE, "idle"]) == [f"{BUSY} busy"]


def test_while_progress_grows_all_that_is_left_counts() -> None:
    assert at_work([IDLE, "idle"], grown=True) == [f"{IDLE} idle"]


def test_a_copy_of_the_script_in_another_session_is_a_daemon() -> None:
    assert at_work([IDLE, "--daemon"], script=[IDLE, "--daemon"]) == [f"{IDLE} --daemon"]
    assert at_work([IDLE, "--daemon"], script=[IDLE, "--other"]) == []


@pytest.mark.parametrize("helper", ["tensorboard", "wandb-service", "multiprocessing.forkserver"])
def test_helpers_do_not_count(helper: str) -> None:
    assert at_work([IDLE, helper], grown=True) == []


def test_a_few_are_named_shortly() -> None:
    found = at_work(*([IDLE, f"{n}{'x' * 200}"] for n in range(5)), grown=True)
    assert len(found) == 3
    assert all(len(command) < 120 for command in found)
