"""Which failures are tried again, and what to do about the others."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from tests.unit.gang.watch.made_up_views import ended
from train.gang import cause_names
from train.gang.watch import causes
from train.gang.watch.causes import Failure, why_not_again
from train.host import end_causes


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        (ended(end_causes.EXIT, 143), True),
        (ended(end_causes.EXIT, 1, "exited with code 1: UnavailableError: Socket closed"), True),
        (ended(end_causes.EXIT, 1, "exited with code 1: ConnectionResetError: [Errno 104]"), True),
        (ended(end_causes.EXIT, 1, "exited with code 1: ModuleNotFoundError: No module"), False),
        (ended(end_causes.EXIT, 1, "exited with code 1: ValueError: shapes"), False),
        (ended(end_causes.EXIT, 2), False),
        (ended(end_causes.DOWNLOAD, 1, step=None), False),
        (ended(end_causes.DOWNLOAD, 1, step=40), True),
    ],
)
def test_worth_another_try(failed: Failure, again: bool) -> None:
    why = why_not_again(failed, None, 0, 3)
    assert (not why) is again
    assert why in ("", "it would fail the same way again")


def test_the_page_says_of_every_cause_whether_it_is_tried_again() -> None:
    page = (REPOSITORY / "docs/supervision.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|.*\| (yes|no|if .*|no, unless .*) \|$", page, re.MULTILINE)
    tried = {cause: again for names, again in rows for cause in re.findall(r"\w+", names)}
    not_failures = {end_causes.STOPPED, *cause_names.PLANNED}
    assert set(tried) == set(causes.CAUSES) == cause_names.CAUSES - not_failures
    for cause, again in tried.items():
        assert ended(cause).again is (again == "yes") or "if" in again or "unless" in again
        assert ended(cause).remedy


def test_a_package_that_is_missing_is_named() -> None:
    reason = "exited with code 1: ModuleNotFoundError: No module named 'pandas.core'"
    assert ended(end_causes.EXIT, 1, reason).remedy == (
        "add pandas to requirements.txt next to the script and pass --requirements, or "
        "pass your own module with --include"
    )
    assert ended(end_causes.EXIT, 1, "exited with code 1: KeyError").remedy.startswith(
        "fix the script"
    )


def test_the_scripts_own_package_is_found_on_the_control_node(tmp_path: Path) -> None:
    script = tmp_path / "trainer" / "task.py"
    script.parent.mkdir()
    (tmp_path / "helpers.py").touch()
    (tmp_path / "trainer/deep").mkdir()

    def missing(name: str, script: str) -> str:
        reason = f"exited with code 1: ModuleNotFoundError: No module named '{name}'"
        return Failure(end_causes.EXIT, "worker-1", 1, reason, None, script).remedy

    by_module = "run it as part of its package: --script {} --module trainer.task"
    assert missing("trainer", str(script)) == by_module.format(tmp_path)
    assert missing("trainer", "/elsewhere/trainer/task.py") == by_module.format("/elsewhere")
    path = tmp_path / "helpers.py"
    assert missing("helpers", str(script)) == f"pass your own package with --include {path}"
    spaced = tmp_path / "my code/trainer/task.py"
    spaced.parent.mkdir(parents=True)
    (tmp_path / "my code/helpers.py").touch()
    assert missing("trainer", str(spaced)) == by_module.format(f"'{tmp_path}/my code'")
    assert missing("helpers", str(spaced)).endswith(f"--include '{tmp_path}/my code/helpers.py'")
    elsewhere = missing("helpers", "/elsewhere/trainer/task.py")
    assert elsewhere.startswith("add helpers to requirements.txt")


@pytest.mark.parametrize(
    ("number", "words", "again"),
    [
        (signal.SIGSEGV, "crashed in native code, and the stacks in its log show where", True),
        (signal.SIGABRT, "crashed in native code", True),
        (signal.SIGBUS, "/dev/shm", True),
        (signal.SIGFPE, "crashed in native code", True),
        (signal.SIGILL, "this CPU lacks instructions", False),
        (signal.SIGKILL, "find out who sent the signal", True),
        (signal.SIGTERM, "find out who sent the signal", True),
    ],
)
def test_a_crash_is_not_a_signal_that_was_sent(number: int, words: str, again: bool) -> None:
    failed = ended(end_causes.SIGNAL, -number)
    assert words in failed.remedy
    assert failed.again is again


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (": ValueError: cannot read 'TimeoutError'", False),
        (": ValueError: label 12", False),
        (": in a child process: BrokenPipeError: [Errno 32] Broken pipe", True),
        (": requests.exceptions.ConnectionError: gone", True),
        (": ExceptionGroup: x (1 sub-exception): ConnectionResetError: gone", True),
        (": OSError: [Errno 116] Stale file handle", True),
        ("; its last line: ConnectionResetError was handled", False),
    ],
)
def test_only_the_error_itself_decides_whether_it_passes(error: str, again: bool) -> None:
    assert ended(end_causes.EXIT, 1, f"exited with code 1{error}").again is again


def test_earlier_attempts_are_listed(tmp_path: Path) -> None:
    for number, (task, reason, step) in {
        1: ("worker-1", "was killed by SIGKILL (signal 9)", 120),
        2: (None, "", None),
        10: ("worker-0", "is of another control node", 3),
    }.items():
        ranks = [{"task": task, "exit_code": None, "reason": reason}]
        result = {"root_cause": task, "cause": "signal", "step": step, "ranks": ranks}
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({**result, "message": "stopped\nby anna"}))
    (tmp_path / "attempts" / "3").mkdir()  # it never got a result
    assert causes.earlier_attempts(tmp_path, 4) == [
        "attempt 1: worker-1 was killed by SIGKILL (signal 9) at step 120",
        "attempt 2: stopped",
    ]
    assert causes.earlier_attempts(tmp_path / "none", 4) == []


def test_the_same_step_twice_is_the_jobs_own_fault() -> None:
    killed = ended(end_causes.MEMORY, -9)
    assert why_not_again(killed, killed, 1, 3) == "it failed the same way twice at step 40"
    assert why_not_again(killed, ended(end_causes.MEMORY, -9, step=20), 1, 3) == ""
    failed = ended(end_causes.INTERNAL)
    assert "the same way twice at step 40" in why_not_again(failed, failed, 1, 3)
    crashed = ended(end_causes.SIGNAL, -11, step=None)
    assert "the same way twice at the start" in why_not_again(crashed, crashed, 1, 3)


def test_a_network_that_fails_twice_at_one_step_is_the_jobs_own_fault_if_all_hosts_answer() -> None:
    def failed(**rank: Any) -> Failure:
        first = {"task": "worker-0", "phase": "failed", "cause": end_causes.EXIT}
        second = {"task": "worker-1", "phase": "stopped", "cause": end_causes.STOPPED, **rank}
        result: Any = {"root_cause": "worker-0", "cause": cause_names.NETWORK, "step": 12}
        result["ranks"] = [{"reason": "", "exit_code": 1, **known} for known in (first, second)]
        return causes.failure_of(result)

    assert "the same way twice at step 12" in why_not_again(failed(), failed(), 1, 3)
    assert why_not_again(failed(phase="running", cause=None), failed(), 1, 3) == ""
    assert why_not_again(failed(phase="failed", cause=None), failed(), 1, 3) == ""


def test_what_comes_from_outside_may_hit_the_same_step_twice() -> None:
    for failed in (
        ended(end_causes.SIGNAL, -9),
        ended(cause_names.UNREACHABLE),
        ended(end_causes.EXIT, 143),
    ):
        assert why_not_again(failed, failed, 1, 3) == ""


def test_the_limit_is_told() -> None:
    told = why_not_again(ended(end_causes.SIGNAL, -9), None, 3, 3)
    assert told == "it was restarted 3 times; the limit is 3 (train_job_max_restarts)"
