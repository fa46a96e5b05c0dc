"""Programs that stay on a host: requests and answers, what the login prints, and failures."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from train.gang.errors import UnreachableError
from train.gang.host_session import HostSession, SessionError

#: Answers each request with itself and the number of requests so far.
ECHO = """\
import json, sys
for number, line in enumerate(sys.stdin, 1):
    print(json.dumps({"request": json.loads(line), "number": number}), flush=True)
"""


class Connection:
    """Starts commands on this machine, after a login that may print text."""

    become: Any = None

    def __init__(self, login: str = "true", output: str = "") -> None:
        self._login, self._output = login, output
        self.processes: list[subprocess.Popen[bytes]] = []
        self.open = 0

    @contextlib.contextmanager
    def process(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        words = ["/bin/bash", "-c", f"{self._login}; {command} {self._output}"]
        pipe = subprocess.PIPE
        self.processes.append(subprocess.Popen(words, stdin=pipe, stdout=pipe))
        self.open += 1
        yield self.processes[-1]
        self.open -= 1


def session(connection: Any, program: str, folder: str = "/") -> HostSession:
    context = SimpleNamespace(executable="/bin/sh")
    action = SimpleNamespace(_connection=connection, _play_context=context)
    return HostSession(action, ["python3", "-S", "-E", "-c", program], folder)


def test_one_program_answers_all_requests_and_ends_with_the_session() -> None:
    connection = Connection(login="echo welcome; printf 'no newline '")
    asked = session(connection, ECHO)
    for number in (1, 2, 3):
        assert asked.ask({"n": number}) == {"request": {"n": number}, "number": number}
    assert len(connection.processes) == connection.open == 1
    asked.close()
    assert connection.processes[0].poll() == 0, "it was killed, or still runs"
    assert connection.open == 0


def test_the_program_runs_in_its_folder(tmp_path: Path) -> None:
    program = "import json, os; input(); print(json.dumps({'folder': os.getcwd()}))"
    asked = session(Connection(), program, str(tmp_path))
    assert asked.ask({}) == {"folder": str(tmp_path)}
    asked.close()


@pytest.mark.parametrize(
    "program",
    [
        "input()",  # ends without an answer
        "raise SystemExit(3)",
        "input(); print('[1]', flush=True); input()",
        "input(); print('no json', flush=True); input()",
        "input(); print('{\"a\": 1}', end='', flush=True)",  # an incomplete line
        "input(); print('[' * 100_000, flush=True); input()",
    ],
)
def test_a_program_without_an_answer_is_an_error(program: str) -> None:
    asked = session(Connection(), program)
    with pytest.raises(SessionError):
        asked.ask({})
    asked.close()


def test_a_terminal_is_refused_at_once() -> None:
    asked = session(Connection(output="| sed -u 's/$/\\r/'"), ECHO)
    with pytest.raises(SessionError, match="terminal"):
        asked.ask({})
    asked.close()


def test_a_request_of_another_thread_fails_when_the_session_is_killed() -> None:
    connection = Connection()
    asked = session(connection, "import time; time.sleep(60)")
    threading.Timer(0.2, asked.kill).start()
    with pytest.raises(SessionError):
        asked.ask({})
    asked.close()
    assert connection.processes[0].poll() == -9


@pytest.mark.parametrize("login", ["exit 1", "while :; do echo noise; done", "yes | tr -d '\\n'"])
def test_a_login_that_never_starts_the_program_is_an_error(login: str) -> None:
    connection = Connection(login)
    asked = session(connection, ECHO)
    with pytest.raises(SessionError):
        asked.ask({})
    asked.close()
    assert connection.processes[0].poll() is not None


def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.gang.host_session._END_S", 0.1)
    connection = Connection()
    asked = session(connection, f"{ECHO}import time\ntime.sleep(60)")
    asked.ask({})
    asked.close()
    assert connection.processes[0].poll() == -9


def test_a_connection_that_cannot_have_sessions_is_refused() -> None:
    elevated = Connection()
    elevated.become = object()  # it may ask for a password
    for connection in (SimpleNamespace(become=None), elevated):
        with pytest.raises(SessionError):
            session(connection, ECHO)
    assert elevated.processes == []


def test_a_failed_login_is_an_error() -> None:
    def process(command: str) -> None:
        raise AnsibleConnectionFailure("no route to host")

    with pytest.raises(UnreachableError, match="no route to host"):
        session(SimpleNamespace(become=None, process=process), ECHO)
