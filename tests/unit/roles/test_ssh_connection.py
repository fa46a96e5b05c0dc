"""The connection plugin ``ssh`` of the role train_job, with a fake ssh."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader, init_plugin_loader
from ansible.utils.display import Display

from tests.support.lab import REPOSITORY
from tests.support.lab import run as run_command
from train.gang import logins

PLUGINS = REPOSITORY / "plugins/connection"
#: A fake ssh that logs its calls. One file has a line for each login to refuse, another the error.
SSH = r"""#!/bin/bash
cd "$(dirname "$0")"
path=$(printf '%s\n' "$@" | sed -n 's/^ControlPath="\?\([^"]*\)"\?$/\1/p')
refuse() {
    [ -s refusals ] || return 1
    sed -i 1d refusals
    cat reason >&2
    exit 255
}
case " $* " in
    *" -O check "*) kind=check; [ -e "$path" ] ;;
    *" -f -N "*) kind=login ;;
    *" ControlPath=none "*" true ") kind=reason ;;
    *) kind="command ${path##*/}" ;;
esac
code=$?
echo "$kind" >> calls
case $kind in
    login) refuse; sleep "$(cat delay)"; : > "$path"; : > "$path.made" ;;
    reason) [ ! -s refusals ] || { cat hidden >&2; exit 255; } ;;
    command*) [ -e "$path" ] || refuse; sleep "$(cat delay)"; echo done ;;
    *) exit $code ;;
esac
"""
REFUSED = "kex_exchange_identification: Connection closed by remote host\n"
#: Refusals by a jump host, or by the host behind it.
THROUGH = f"{REFUSED}Connection closed by UNKNOWN port 65535\n"


class Machine:
    """Connections to one machine through a fake ssh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "ssh"
        self.program.write_text(SSH)
        self.program.chmod(0o755)
        self.refuse(0)
        self.delay(0)

    def refuse(self, times: int, reason: str = REFUSED) -> None:
        (self.folder / "refusals").write_text("refused\n" * times)
        (self.folder / "reason").write_text(reason)

    def hide(self, reason: str) -> None:
        """Set the reason of a refusal, which ssh only prints if the login is not shared."""
        (self.folder / "hidden").write_text(reason)

    def delay(self, seconds: float) -> None:
        (self.folder / "delay").write_text(str(seconds))

    def connection(self, **options: Any) -> Any:
        """Return a connection like that of a task."""
        context = PlayContext()
        context.remote_addr = "node-1"
        connection = connection_loader.get("ssh", context)
        given = {
            "host": "node-1",
            "port": 22,
            "remote_user": "train",
            "ssh_executable": str(self.program),
            "control_path_dir": str(self.folder / "cp"),
            "ssh_args": "-o ControlMaster=auto -o ControlPersist=60s",
            "timeout": 10,
        }
        connection.set_options(direct={**given, **options})
        return connection

    def calls(self, kind: str) -> list[str]:
        """Return the calls of ssh of one kind, and clear the log."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if line.startswith(kind)]


@pytest.fixture(scope="module", autouse=True)
def _full_names() -> None:
    """Make Ansible find its own plugin under its full name, like ansible-playbook."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a second call
        init_plugin_loader()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(logins, "is_shared", Path.exists)
    connection_loader.add_directory(str(PLUGINS))
    return Machine(tmp_path)


def at_once(machine: Machine, **options: Any) -> list[Any]:
    """Run ten commands at once, each over a connection, and return their results."""
    connections = [machine.connection(**options) for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(run, connections))


def run(connection: Any) -> Any:
    """Run a command with input, like a module; return exit code and output."""
    return connection.exec_command("uptime", in_data=b"x\n", sudoable=False)[:2]


def test_ansible_takes_the_plugin_by_its_short_name() -> None:
    text = "from ansible.plugins.loader import connection_loader as c; print(c.find_plugin('ssh'))"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == PLUGINS / "ssh.py"


def test_a_playbook_with_another_configuration_takes_it_too(machine: Machine) -> None:
    config, playbook = machine.folder / "ansible.cfg", machine.folder / "play.yml"
    config.write_text(f"[defaults]\ncollections_path = {REPOSITORY}/playbooks/collections\n")
    role = {"name": "tensorflow_ansible.cluster.train_job", "tasks_from": "list"}
    playbook.write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"import_role": role}]}])
    )
    options = {
        "ansible_ssh_executable": str(machine.program),
        "ansible_control_path_dir": str(machine.folder / "cp"),
        "ansible_control_path": "%(directory)s/%%C",  # so that ssh is asked for its login
        "ansible_pipelining": True,
        "ansible_python_interpreter": "/usr/bin/python3",
        "train_job_groups": {"worker": ["node-1"]},
    }
    words = ["-i", "node-1,", "-e", json.dumps(options), str(playbook)]
    done = run_command(
        str(Path(sys.executable).with_name("ansible-playbook")),
        *words,
        env={**os.environ, "ANSIBLE_CONFIG": str(config)},
    )
    assert machine.calls("login") == ["login"], done.stdout


def test_commands_at_once_log_in_one_after_the_other_and_share_it(machine: Machine) -> None:
    machine.delay(0.4)
    assert at_once(machine) == [(0, b"done\n")] * 10
    calls = machine.calls("")
    assert calls.count("login") == 2
    commands = [call for call in calls if call.startswith("command")]
    assert sorted(map(commands.count, set(commands))) == [2, 8]
    assert run(machine.connection()) == (0, b"done\n")
    assert machine.calls("login") == []


def test_a_refused_login_is_tried_again(machine: Machine) -> None:
    machine.refuse(3)
    assert run(machine.connection()) == (0, b"done\n")
    assert machine.calls("login") == ["login"] * 4


def test_a_login_that_is_always_refused_ends_with_the_timeout(machine: Machine) -> None:
    machine.refuse(100)
    with pytest.raises(AnsibleConnectionFailure, match="kex_exchange_identification"):
        run(machine.connection(timeout=1))
    assert 2 <= len(machine.calls("login")) <= 10


def test_an_unreachable_host_is_reported_at_once(machine: Machine) -> None:
    machine.refuse(100, "ssh: connect to host node-1 port 22: Connection refused\n")
    with pytest.raises(AnsibleConnectionFailure, match="Connection refused"):
        run(machine.connection())
    assert machine.calls("") == ["login"]


def test_an_unreachable_host_behind_a_jump_host_is_reported_at_once(machine: Machine) -> None:
    reason = "channel 0: open failed: connect failed: No route to host\nstdio forwarding failed\n"
    machine.refuse(100, THROUGH)
    machine.hide(reason + THROUGH)
    with pytest.raises(AnsibleConnectionFailure, match="No route to host"):
        run(machine.connection())
    assert machine.calls("") == ["login", "reason"]


def test_a_login_that_a_jump_host_refused_is_tried_again(machine: Machine) -> None:
    machine.refuse(3, THROUGH)
    machine.hide(REFUSED + THROUGH)
    assert run(machine.connection()) == (0, b"done\n")
    assert machine.calls("login") == ["login"] * 4


def test_a_choice_of_more_tries_holds(machine: Machine) -> None:
    machine.refuse(1, "ssh: connect to host node-1 port 22: Connection refused\n")
    assert run(machine.connection(reconnection_retries=2)) == (0, b"done\n")


@pytest.mark.parametrize(
    "options",
    [
        {"ssh_args": "-C"},
        {"ssh_args": "-o ControlMaster=no -o ControlPersist=60s"},
        {"ssh_args": "-o ControlMaster=auto -o ControlPersist=no"},
        {"ssh_extra_args": "-o ControlPath=none"},
    ],
    ids=["none", "no-master", "not-kept", "no-path"],
)
def test_without_a_shared_login_each_command_is_tried_again(
    machine: Machine, options: dict[str, Any]
) -> None:
    machine.refuse(2)
    assert run(machine.connection(**options)) == (0, b"done\n")
    calls = machine.calls("")
    assert [call.split()[0] for call in calls] == ["command"] * 3


def test_a_path_that_the_user_chose_is_kept_for_the_first_login(machine: Machine) -> None:
    machine.delay(0.3)
    path = machine.folder / "mine"
    own = f"-o ControlMaster=auto -o ControlPersist=1m -o ControlPath={path}"
    assert at_once(machine, ssh_args=own) == [(0, b"done\n")] * 10
    commands = machine.calls("command")
    assert (commands.count("command mine"), commands.count("command mine-1")) == (8, 2)


def test_files_are_copied_over_the_shared_login(machine: Machine) -> None:
    connection = machine.connection(ssh_transfer_method="piped")
    source = machine.folder / "source"
    source.write_text("text\n")
    connection.put_file(str(source), "/tmp/target")
    connection.fetch_file("/tmp/target", str(machine.folder / "copy"))
    assert (machine.folder / "copy").read_text() == "done\n"
    assert len(machine.calls("login")) == 1


def test_a_command_that_is_talked_to_holds_a_place_in_a_login(machine: Machine) -> None:
    talking = machine.connection()
    with contextlib.ExitStack() as held:
        for _ in range(8):
            process = held.enter_context(machine.connection().process("cat"))
            process.communicate()
        with talking.process("cat") as process:
            assert process.communicate() == (b"done\n", None)
        words = [os.fsdecode(word) for word in process.args]
    assert words[-3:] == ["-T", "node-1", "cat"]
    assert words[1:5] == ["-o", "BatchMode=yes", "-o", "ControlMaster=no"]
    commands = machine.calls("command")
    assert len(commands) == 9
    assert len([command for command in commands if command.endswith("-1")]) == 1
    assert run(talking) == (0, b"done\n")


def test_a_command_is_not_talked_to_without_shared_logins(machine: Machine) -> None:
    connection = machine.connection(ssh_args="-o ControlMaster=no")
    with pytest.raises(AnsibleError, match="share logins"), connection.process("cat"):
        pass
    machine.refuse(99, "Permission denied (publickey).\n")
    with pytest.raises(AnsibleConnectionFailure, match="Permission denied"):
        machine.connection().process("cat").__enter__()


def test_a_file_is_sent_in_the_first_way_that_works_with_one_warning(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = machine.connection(sftp_executable="false", scp_executable="false")
    shown: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda self, text, *_, **__: shown.append(text))
    source = machine.folder / "source"
    source.write_text("text")
    connection.put_file(str(source), "/tmp/target")
    (warning,) = shown
    assert warning.startswith("the host prints text at login, so sftp does not work")
    assert connection.get_option("ssh_transfer_method") == "smart"
    broken = dict.fromkeys(("sftp_executable", "scp_executable", "ssh_executable"), "false")
    with pytest.raises(AnsibleError):
        machine.connection(**broken).put_file(str(source), "/tmp/target")
    assert len(shown) == 1


def test_an_ssh_that_cannot_log_in_beforehand_still_runs_commands(machine: Machine) -> None:
    machine.program.write_text(SSH.replace("login) refuse;", "login) exit 2;"))
    assert run(machine.connection()) == (0, b"done\n")
    assert machine.calls("login") == ["login"]


def test_without_locks_commands_still_run(machine: Machine) -> None:
    assert run(machine.connection()) == (0, b"done\n")
    locks = list((machine.folder / "cp/logins").iterdir())
    assert locks
    for lock in locks:
        lock.unlink()
        lock.mkdir()  # a folder, so no file can be opened
    assert run(machine.connection()) == (0, b"done\n")


def test_an_ssh_that_is_missing_is_reported_by_ansible(machine: Machine) -> None:
    machine.program.unlink()
    with pytest.raises(AnsibleError, match="Unable to execute ssh"):
        run(machine.connection())


def test_a_reset_concerns_all_logins(machine: Machine) -> None:
    machine.delay(0.3)
    at_once(machine)
    machine.calls("")
    machine.connection().reset()
    assert len(machine.calls("check")) == 2
