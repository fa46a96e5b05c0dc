"""Logs in to a host before a task starts work there.

A login that fails or hangs is thus reported quickly and clearly.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from train.gang import host_programs, login_failures, logins
from train.gang.connections import Returned, say
from train.gang.login_failures import LoginFailure
from train.host import processes

#: Seconds until a slow host is reported, and until its login counts as failed. The margin lets
#: Ansible's own connection timeout expire first.
NAMED_S, _LIMIT_S, _MARGIN_S = 4.0, 9.5, 1.5
#: Characters of a host's output in a message.
_SAID = 300
#: Options of Ansible's connection plugins, by variable.
_OPTIONS = {
    "ansible_host": "host",
    "ansible_port": "port",
    "ansible_user": "remote_user",
    "ansible_ssh_private_key_file": "private_key_file",
    "ansible_ssh_args": "ssh_args",
    "ansible_ssh_common_args": "ssh_common_args",
    "ansible_ssh_extra_args": "ssh_extra_args",
}


def failure_of(action: Any, host: str) -> LoginFailure | None:
    """Log in to the action's host. Return the failure, or None if the login works."""
    connection = action._connection
    if not needs_login(connection):
        return None
    with (
        turn(connection, host),
        _limited(limit_of(connection), lambda: say(login_failures.waiting([host]))) as expired,
    ):
        failed = attempt(action)
    return hanging(connection) if expired.is_set() else failed


def needs_login(connection: Any) -> bool:
    """Return whether commands run on another machine, or as another user."""
    return connection.transport != "local" or connection.become is not None


def is_new(connection: Any) -> bool:
    """Log in for the commands that follow, if they can share a login; return whether it is new.

    The machine may be lost since an earlier login. With ``become``, each command may need a
    password, so return False. Raise AnsibleError if the login is refused.
    """
    log_in = getattr(connection, "log_in", None)  # of plugins/connection/ssh.py
    return bool(connection.become is None and log_in is not None and log_in())


def limit_of(connection: Any) -> float:
    """Return the seconds after which a login counts as failed."""
    return max(_LIMIT_S, float(_option(connection, "timeout") or 0) + _MARGIN_S)


def hanging(connection: Any) -> LoginFailure:
    """Return the failure of a login that exceeded its limit."""
    return login_failures.failure("hangs", variables_of(connection))


def attempt(action: Any) -> LoginFailure | None:
    """Log in to the action's host, however long it takes. Return the failure, or None."""
    connection = action._connection
    mark = f"login-{secrets.token_hex(8)}"
    become = connection.become is not None
    try:
        done = action._low_level_execute_command(f"echo {mark}", sudoable=become, in_data=b"\n")
        if mark in str(done["stdout"]):
            return None
        text = f"{done['stdout']}\n{done['stderr']}"
    except AnsibleError as error:
        text = str(error)
    return without_command(text, connection)


def without_command(text: str, connection: Any) -> LoginFailure:
    """Return the reason why a login ran no command, from its output."""
    if not text.strip() or text.startswith(host_programs.EXIT):  # it may only repeat its input
        return login_failures.failure("no-commands", variables_of(connection))
    return explain(text, connection)


def turn(connection: Any, host: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this login may begin, see ``logins.turn``."""
    folder = _option(connection, "control_path_dir")
    if not folder:  # not a connection of ssh
        return contextlib.nullcontext()
    return logins.turn(Path(folder).expanduser() / "logins", host)


def without_result(action: Any, answer: host_programs.Answer) -> Returned:
    """Return the result of a task whose program printed no result on the action's host.

    If the host has no Python, it counts as unreachable.
    """
    lacks_python = answer.code == 127 and not _pythons(action)
    if lacks_python:
        failed = login_failures.failure("no-python", variables_of(action._connection))
        return {"unreachable": True, "msg": failed.text}
    said, code = " ".join(answer.text.split())[-_SAID:], f"exit code {answer.code}"
    return {"failed": True, "msg": f"the host's Python printed no result: {said or code}"}


def _pythons(action: Any) -> str:
    """Return the interpreters that the action's host has; empty if it has none."""
    found = action._low_level_execute_command(
        "command -v python3 || ls /usr/bin/python3.* /usr/local/bin/python3.* 2>/dev/null"
    )
    return str(found["stdout"]).strip()


def explain(text: str, connection: Any) -> LoginFailure:
    """Return the reason for a failed login, from its output and the private key on this machine."""
    host_vars = variables_of(connection)
    found = login_failures.classify(text, host_vars)
    if found.kind in ("key-denied", "password-denied"):
        key = Path(str(host_vars.get("ansible_ssh_private_key_file") or "")).expanduser()
        if host_vars.get("ansible_ssh_private_key_file") and has_passphrase(key):
            return login_failures.failure("key-passphrase", host_vars)
    return found


def variables_of(connection: Any) -> Returned:
    """Return the connection settings of a host as Ansible variables."""
    found = {name: _option(connection, option) for name, option in _OPTIONS.items()}
    return {"ansible_connection": connection.transport, **found}


def _option(connection: Any, name: str) -> Any:
    with contextlib.suppress(AnsibleError, KeyError):
        return connection.get_option(name)
    return None


def has_passphrase(key: Path) -> bool:
    """Return whether a private key file is encrypted; False if it cannot be read."""
    try:
        text = key.read_text("ascii")
    except (OSError, UnicodeError):
        return False
    if "OPENSSH PRIVATE KEY" not in text:
        return "ENCRYPTED" in text
    body = "".join(line for line in text.splitlines() if not line.startswith("-"))
    with contextlib.suppress(ValueError):
        # The cipher's name follows the magic word and its own length.
        return base64.b64decode(body)[19:23] != b"none"
    return False


def end_children() -> None:
    """Ask the children of this process, such as ssh, to end."""
    for pid, process in processes.snapshot().items():
        if process.parent == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def _limited(limit: float, on_wait: Callable[[], None]) -> Iterator[threading.Event]:
    """Limit the duration of a block, and yield an event that is set if the block takes too long.

    Call ``on_wait`` if the block has not ended after NAMED_S seconds. After ``limit`` seconds, set
    the event and end this process's children.
    """
    ended, expired = threading.Event(), threading.Event()

    def watch() -> None:
        if ended.wait(NAMED_S):
            return
        on_wait()
        while not ended.wait(0.5 if expired.is_set() else limit - NAMED_S):
            expired.set()
            end_children()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield expired
    finally:
        ended.set()
        watcher.join()
