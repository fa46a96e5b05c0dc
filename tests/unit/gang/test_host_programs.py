"""Commands and programs on hosts, and what they print."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from train.gang import host_programs
from train.gang.errors import UnreachableError
from train.host import rank_files


def on_this_machine(login: str = "", environment: dict[str, str] | None = None) -> Any:
    """Return an action whose commands run on this machine, after a login that prints a text."""

    def execute(command: str, sudoable: bool, in_data: bytes | None) -> dict[str, Any]:
        words = ["/bin/sh", "-c", f"printf %s {shlex.quote(login)}; {command}"]
        done = subprocess.run(
            words, input=in_data or b"", capture_output=True, check=False, env=environment
        )
        return {
            "rc": done.returncode,
            "stdout": done.stdout.decode(),
            "stderr": done.stderr.decode(),
        }

    connection = SimpleNamespace(become=None)
    return SimpleNamespace(_connection=connection, _low_level_execute_command=execute)


def test_the_text_of_a_login_is_not_taken_for_the_answer() -> None:
    action = on_this_machine(login='{"root": "of the login"}\nWelcome! ')
    assert host_programs.run(action, "echo '{\"a\": 1} bye'") == {"a": 1}


def test_a_login_that_does_not_run_the_command_is_told_from_one_that_does() -> None:
    printed = {"rc": 1, "stdout": "This account is currently not available.\n", "stderr": "bye"}
    connection = SimpleNamespace(become=None)
    action = SimpleNamespace(
        _connection=connection, _low_level_execute_command=lambda *_, **__: printed
    )
    answer = host_programs.ask(action, "echo '{}'")
    assert answer == (None, 1, "This account is currently not available.\n\nbye", False)
    assert host_programs.ask(on_this_machine(), "false").ran


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no json", "no json"),
        ("echo '{}'; echo wrong >&2; exit 3", "wrong"),
        ("exit 3", "answer-.*|exit code 3"),
        ("echo '[1]'", r"\[1\]"),
    ],
)
def test_a_command_without_an_answer_is_an_error(command: str, message: str) -> None:
    with pytest.raises(OSError, match=message):
        host_programs.run(on_this_machine(), f"({command})")


def test_a_program_runs_in_the_hosts_interpreter_without_files(tmp_path: Path) -> None:
    request = {"call": "stop_request", "root": str(tmp_path), "job": "night"}
    assert host_programs.call(on_this_machine(), "python3", request)["stopped"] == ""
    stopped = tmp_path / "jobs/night" / rank_files.STOP_REQUEST_FILE
    stopped.parent.mkdir(parents=True)
    stopped.write_text(json.dumps({"reason": "was \"stopped\" by 'me'"}))
    answer = host_programs.call(on_this_machine(), "python3", request)
    assert answer["stopped"] == "was \"stopped\" by 'me'"


def test_the_message_of_a_failed_program_is_the_error() -> None:
    request = {"call": "rank_fault", "root": "/nowhere", "job": "night", "host": "a"}
    with pytest.raises((OSError, ValueError)) as failed:
        host_programs.call(on_this_machine(), "python3", {**request, "fault": "x"})
    assert "Traceback" in str(failed.value) or "night" in str(failed.value)


def test_an_interpreter_that_is_too_old_is_explained() -> None:
    command, program = host_programs.command_of("python3", {"call": "usage"})
    assert command.count("(3, 8)") == 1
    answer = host_programs.ask(on_this_machine(), command.replace("(3, 8)", "(9, 0)"), program)
    assert answer.code == 1
    assert answer.value is not None
    message = answer.value["msg"]
    assert answer.value == {"failed": True, "msg": message}
    assert re.fullmatch(
        r"the host's Python \(/\S+\) is version 3\.\d+: install Python 3\.8 or newer, or set "
        "ansible_python_interpreter to the path of one",
        message,
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_that_takes_the_program_for_commands_runs_none(tmp_path: Path, shell: str) -> None:
    """For example, because a start-up file of the login contains ``exec bash``."""
    _, program = host_programs.command_of("python3", {"call": "usage", "x": "$(touch it)"})
    done = subprocess.run([shell], input=program, capture_output=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_that_does_not_run_reads_the_program_anyway() -> None:
    command, program = host_programs.command_of("/nowhere/python", {"call": "usage"})
    assert len(program) > 1 << 17, "more than a pipe holds"
    with subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        process.stdin.write(program)
        process.stdin.close()  # a broken pipe would be an error
        assert process.wait() == 127


def test_a_connection_that_fails_is_unreachable() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AnsibleConnectionFailure("ssh: connect to host a port 22: Connection refused")

    action = SimpleNamespace(
        _connection=SimpleNamespace(become=None), _low_level_execute_command=refuse
    )
    with pytest.raises(UnreachableError, match="the connection was refused") as lost:
        host_programs.run(action, "true")
    assert lost.value.kind == "refused"


def words_of(setting: str | None) -> str:
    variables = {} if setting is None else {"ansible_python_interpreter": setting}
    same: Callable[[Any], Any] = lambda value: value  # noqa: E731
    return host_programs.interpreter(variables, same)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("'/opt/my python/bin/python'", "'/opt/my python/bin/python'"),
        ("~/venv/bin/python", "~/venv/bin/python"),
        ("/usr/bin/env python3", "/usr/bin/env python3"),
        ("python3; reboot", "'python3;' reboot"),
    ],
)
def test_an_interpreter_is_what_was_set(setting: str, words: str) -> None:
    assert words_of(setting) == words


@pytest.mark.parametrize("setting", [None, "auto", "auto_silent", "auto_legacy"])
def test_an_interpreter_is_searched_by_the_hosts_shell(setting: str | None, tmp_path: Path) -> None:
    for name in ("python3.9", "python3"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho \'{{"ran": "{name}"}}\'\n')
        (tmp_path / name).chmod(0o755)
    action = on_this_machine(environment={"PATH": str(tmp_path)})
    ran = host_programs.run(action, words_of(setting))["ran"]
    assert ran == "python3.9"
    nothing = subprocess.run(
        ["/bin/sh", "-c", f"echo {words_of(setting)}"], env={"PATH": "/nowhere"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert nothing.stdout.startswith("/")
