"""Logins before a task starts work, and messages about those that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from train.gang import login_check
from train.host import processes

OPTIONS = {"host": "192.0.2.7", "remote_user": "anna"}


def action(answer: Any, transport: str = "ssh", **options: Any) -> Any:
    """Return an action whose command has an answer: a function of the command, or an error."""

    def execute(command: str, **_: Any) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return {"stdout": answer(command), "stderr": ""}

    known = {**OPTIONS, **options}
    connection = SimpleNamespace(transport=transport, become=None, get_option=known.__getitem__)
    return SimpleNamespace(_connection=connection, _low_level_execute_command=execute)


def echo(command: str) -> str:
    return f"Welcome!\n{command.partition(' ')[2]}\n"


def test_a_login_that_runs_commands_is_good_whatever_it_prints() -> None:
    assert login_check.failure_of(action(echo), "node-1") is None


def test_this_machine_needs_no_login() -> None:
    assert login_check.failure_of(action(OSError("not called"), "local"), "node-1") is None


def test_a_login_that_runs_no_command_is_explained_with_the_way_to_try_it() -> None:
    failed = login_check.failure_of(action(lambda command: ""), "node-1")
    assert failed is not None
    assert failed.kind == "no-commands"
    assert "anna@192.0.2.7" in failed.remedy


def make_key(path: Path, passphrase: str, *form: str) -> str:
    words = ["ssh-keygen", "-q", "-a", "1", "-N", passphrase, "-f", str(path), *form]
    subprocess.run(words, check=True)
    return str(path)


@pytest.mark.parametrize("form", [("-t", "ed25519"), ("-t", "ecdsa", "-m", "PEM")])
def test_a_passphrase_explains_why_a_key_is_denied(tmp_path: Path, form: tuple[str, ...]) -> None:
    denied = AnsibleConnectionFailure("anna@192.0.2.7: Permission denied (publickey).")
    for passphrase, kind in {"": "key-denied", "secret": "key-passphrase"}.items():
        key = make_key(tmp_path / f"key{passphrase}", passphrase, *form)
        failed = login_check.failure_of(action(denied, private_key_file=key), "node-1")
        assert failed is not None
        assert failed.kind == kind
        assert (f"`ssh-add {key}`" in failed.remedy) is bool(passphrase)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx"])
def test_a_file_that_is_no_key_has_no_passphrase(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    assert not login_check.has_passphrase(tmp_path / "key")
    assert not login_check.has_passphrase(tmp_path / "nowhere")


def test_a_login_that_hangs_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("NAMED_S", 0.02), ("_LIMIT_S", 0.05), ("_MARGIN_S", 0.0)):
        monkeypatch.setattr(login_check, name, seconds)
    said: list[str] = []
    monkeypatch.setattr(login_check, "say", said.append)
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    ssh = subprocess.Popen(sleep)
    own = processes.snapshot()[ssh.pid]
    assert own.parent == os.getpid()
    # The other children of this process belong to other tests.
    monkeypatch.setattr(processes, "snapshot", lambda: {ssh.pid: own})

    def hang(command: str) -> str:
        ssh.wait(20)
        return ""

    failed = login_check.failure_of(action(hang), "node-1")
    assert failed is not None
    assert failed.kind == "hangs"
    assert said == ["waiting for the login to node-1"]
    assert ssh.returncode == -signal.SIGTERM
