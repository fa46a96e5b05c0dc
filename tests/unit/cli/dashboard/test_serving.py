"""The command: its address, its options, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from tests.support.dashboards import PASSWORD
from tests.support.lab import environment, free_port
from train.cli.dashboard import access, serving
from train.cli.main import main
from train.gang.errors import UserError


def test_it_prints_its_address_and_ends_on_a_signal(tmp_path: Path) -> None:
    port = free_port()
    words = ["dashboard", "--port", str(port), "-e", f"train_job_runs_dir={tmp_path}"]
    command = [sys.executable, "-m", "train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        token = (tmp_path / ".dashboard/token").read_text()
        assert line == f"dashboard: http://127.0.0.1:{port}/?token={token} (press Ctrl-C to stop)\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bind", "0.0.0.0"], "--bind needs a password"),
        (["--password-file", "x"], "--password-file is only for --bind"),
        (["--port", "0"], "0 is not a whole number of 1 or more"),
    ],
)
def test_unsafe_and_wrong_options_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("TRAIN_DASHBOARD_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    words = ["dashboard", "-e", f"train_job_runs_dir={tmp_path}", *options]
    try:
        code = main(words)
    except SystemExit as error:
        code = int(str(error))
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / ".dashboard").exists()


def test_a_port_that_cannot_exist_is_refused() -> None:
    with pytest.raises(UserError, match="65536: the last port is 65535"):
        serving.listen("127.0.0.1", 65_536)


def test_a_port_that_is_in_use_is_skipped_unless_it_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(serving, "PORT", taken)
        with serving.listen("127.0.0.1", None) as listener:
            assert listener.getsockname()[1] > taken
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{taken}"):
            serving.listen("127.0.0.1", taken)
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1:"):
        serving.listen("192.0.2.1", None)


def test_other_commands_do_not_load_a_web_server() -> None:
    program = "import sys, train.cli.main; print([m for m in sys.modules if 'starlette' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_the_password_is_not_passed_on_and_the_address_is_that_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(access.PASSWORD_VARIABLE, PASSWORD)
    args = Namespace(bind="0.0.0.0", password_file=None, read_only=True)
    rules = serving._access_of(args, {"train_job_runs_dir": str(tmp_path)})
    assert (rules.password, rules.bind, rules.read_only) == (PASSWORD, "0.0.0.0", True)
    assert access.PASSWORD_VARIABLE not in os.environ
    line = serving._address(rules, 8787)
    assert f"http://{socket.gethostname()}:8787/ " in line
    assert rules.token not in line
