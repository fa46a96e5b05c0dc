"""The connection plugin ``srun``, with a program that runs steps on this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import become_loader, connection_loader

from train.host import processes

#: Notes its options and runs the command after them. A startup file prints a greeting.
SRUN = """#!/bin/bash
here=$(dirname "$0")
: > "$here/options"
while [[ $1 == --* ]]; do echo "$1" >> "$here/options"; shift; done
if [ -e "$here/busy" ]; then cat "$here/busy" >&2; rm "$here/busy"; exit 1; fi
[ ! -e "$here/error" ] || { cat "$here/error" >&2; exit 1; }
[ ! -e "$here/hangs" ] || sleep 60
echo welcome
exec "$@"
"""


@pytest.fixture
def srun(tmp_path: Path) -> Path:
    program = tmp_path / "srun"
    program.write_text(SRUN)
    program.chmod(0o755)
    return program


def connect(srun: Path, **options: Any) -> Any:
    """Return a connection to a node."""
    made = connection_loader.get("tensorflow_ansible.cluster.srun", PlayContext(), os.devnull)
    given = {"ansible_host": "node-1", "ansible_srun_job_id": "77", **options}
    made.set_options(var_options={"ansible_srun_executable": str(srun), **given})
    return made


def test_a_command_is_a_step_on_the_node(srun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    monkeypatch.setenv("ANSIBLE_FORKS", "3")
    monkeypatch.setenv("LIBRARIES", "of a module")
    connection = connect(srun, ansible_srun_extra_args="--mem=0 --account='a b'")
    code, output, errors = connection.exec_command("env; echo no >&2; exit 3")
    assert (code, errors) == (3, b"no\n")
    variables = dict(line.split("=", 1) for line in output.decode().splitlines())
    assert variables["LIBRARIES"] == "of a module"
    assert not {"SLURM_CPUS_PER_TASK", "ANSIBLE_FORKS"} & variables.keys()
    folders = variables["PATH"].split(":")
    assert not any(Path(folder, "ansible-playbook").exists() for folder in folders)
    assert (srun.parent / "options").read_text().splitlines() == [
        *("--overlap", "--jobid=77", "--nodelist=node-1", "--nodes=1", "--ntasks=1", "--quiet"),
        *("--mpi=none", "--cpu-bind=none", f"--chdir={Path.home()}", "--input=none"),
        *("--mem=0", "--account=a b"),
    ]


def test_input_and_output_are_unchanged(srun: Path) -> None:
    data = bytes(range(256)) * 5_000
    assert connect(srun).exec_command("cat", data) == (0, data, b"")
    # A command may end without reading its input.
    assert connect(srun).exec_command("printf x", data) == (0, b"x", b"")
    assert connect(srun).exec_command("kill -9 $$")[0] == 128 + signal.SIGKILL


def test_the_end_of_a_command_is_found_however_its_output_is_split() -> None:
    loaded = connection_loader.get("tensorflow_ansible.cluster.srun", class_only=True)
    make = sys.modules[loaded.__module__]._Stream
    whole = b"welcome\nstep-1 begin\nsome output\nstep-1 end 137\n"
    for size in range(1, len(whole) + 1):
        stream = make(b"step-1")
        for place in range(0, len(whole), size):
            stream.add(whole[place : place + size])
        assert (stream.code, stream.text) == (137, b"some output\n"), size


def test_files_are_sent_and_fetched(srun: Path, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "a file").write_bytes(data)
    connection = connect(srun)
    connection.put_file(str(tmp_path / "a file"), str(tmp_path / "sent 'it'"))
    connection.fetch_file(str(tmp_path / "sent 'it'"), str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == data
    with pytest.raises(AnsibleError, match=r"failed to transfer a file: .*No such file"):
        connection.fetch_file(str(tmp_path / "none"), str(tmp_path / "fetched"))
    with pytest.raises(AnsibleError, match="does not exist"):
        connection.put_file(str(tmp_path / "none"), str(tmp_path / "sent"))


def test_a_step_lasts_as_long_as_the_processes_of_its_command(srun: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    # Like the supervisor of a rank, this ignores SIGTERM, and has a separate session.
    daemon = f"setsid sh -c 'trap \"\" TERM; echo $$ $PPID > {tmp_path}/pids; sleep 30'"
    command = f"({daemon} < /dev/null > /dev/null 2>&1 &); until [ -s {tmp_path}/pids ]; do :; done"
    assert connect(srun).exec_command(command) == (0, b"", b"")
    assert time.monotonic() - started < 20
    daemon_pid = int((tmp_path / "pids").read_text().split()[0])
    running = processes.snapshot()
    step_pid = running[daemon_pid].parent
    words = Path(f"/proc/{step_pid}/cmdline").read_bytes()
    assert b"PR_SET_CHILD_SUBREAPER" in words, "it is a descendant of the step's process"
    os.kill(step_pid, signal.SIGTERM)  # as Slurm does at the time limit
    time.sleep(0.3)
    assert processes.is_alive(step_pid, processes.start_time(step_pid))
    for pid in processes.descendants([step_pid], processes.snapshot()):
        processes.send(pid, signal.SIGKILL)  # the end of one may end another
    assert processes.wait_until(lambda: not Path(f"/proc/{step_pid}/fd/0").exists(), 10)


def test_a_step_that_does_not_start_is_unreachable(srun: Path, tmp_path: Path) -> None:
    (tmp_path / "error").write_text("srun: error: Unable to confirm allocation: Invalid job id\n")
    with pytest.raises(AnsibleConnectionFailure, match=r"step failed: .*Invalid job id"):
        connect(srun).exec_command("true")
    (tmp_path / "error").unlink()
    (tmp_path / "hangs").touch()
    with pytest.raises(AnsibleConnectionFailure, match=r"within 1 s .*printed nothing"):
        connect(srun, ansible_srun_timeout=1).exec_command("true")
    with pytest.raises(AnsibleConnectionFailure, match=r"cannot run .*/none \(No such file"):
        connect(tmp_path / "none").exec_command("true")


def test_a_step_that_a_busy_slurm_did_not_start_is_tried_again(srun: Path, tmp_path: Path) -> None:
    reason = "srun: error: Unable to create step for job 77: Socket timed out on send/recv\n"
    (tmp_path / "busy").write_text(reason)
    assert connect(srun).exec_command("echo done") == (0, b"done\n", b"")
    (tmp_path / "busy").write_text(reason)
    (tmp_path / "file").write_text("all of it")
    connect(srun).put_file(str(tmp_path / "file"), str(tmp_path / "sent"))
    assert (tmp_path / "sent").read_text() == "all of it"
    (tmp_path / "busy").write_text(reason)
    with pytest.raises(AnsibleConnectionFailure, match="Socket timed out"):
        connect(srun, ansible_srun_timeout=1).exec_command("echo done")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ansible_host": "--overlap"}, "'--overlap' is not the name of a Slurm node"),
        ({"ansible_host": "a,b"}, "'a,b' is not the name of a Slurm node"),
        ({"ansible_srun_job_id": "1 2"}, "'1 2' is not the id of a Slurm job"),
    ],
)
def test_options_are_checked(srun: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(AnsibleError, match=said):
        connect(srun, **options).exec_command("true")
    assert not (srun.parent / "options").exists()


def test_a_become_password_cannot_be_entered(srun: Path) -> None:
    connection = connect(srun)
    sudo = become_loader.get("ansible.builtin.sudo")
    sudo.set_options(var_options={"ansible_become_password": "hidden"})
    connection.set_become_plugin(sudo)
    with pytest.raises(AnsibleError, match="cannot enter a become password"):
        connection.exec_command("true")
