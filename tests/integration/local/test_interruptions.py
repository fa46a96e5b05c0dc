"""The control node leaves, comes back, or loses its terminal; the job does not mind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.jobs import PLAIN, ansible_of, job_processes, plain, rank_pid, training
from tests.support.lab import REPOSITORY, Command, Lab, environment, playbook_command
from train.host import processes, records

Labs = Callable[..., Lab]


def test_a_job_goes_on_without_its_control_node_and_is_stopped(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "alone", "--steps 900 --deaf --child")
    command.wait_for(training)
    pids = [rank_pid(lab.root, "alone", f"worker-{i}") for i in (0, 1)]
    for pid in ansible_of(lab):
        os.kill(pid, signal.SIGKILL)
    command.kill()
    time.sleep(1)
    assert all(processes.start_time(pid) for pid in pids), "the job ended with its control node"
    stopped = lab.playbook("stop.yml", train_job_id="alone", train_job_grace=1)
    assert stopped.returncode == 0, stopped.stdout
    assert stopped.stdout.count("port_free: true") == 2
    assert job_processes(lab.root) == []
    again = lab.playbook("stop.yml", train_job_id="alone")
    assert again.returncode == 0
    assert "changed=0" in again.stdout


def test_an_interrupt_can_leave_the_job_and_attach_brings_it_home(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "left", "--steps 40", "--on-interrupt", "leave")
    command.wait_for(training)
    command.process.send_signal(signal.SIGINT)
    run = command.end()
    assert run.code == 130
    assert run.result["state"] == "left"
    assert processes.start_time(rank_pid(lab.root, "left", "worker-0"))
    attached = Command(*lab.words("attach", "--json", "left")).end()
    assert attached.code == 0, attached.error
    progress = (lab.runs_dir / "left/progress/worker-1.jsonl").read_text()
    steps = [record["step"] for record in records.parse_progress(progress)]
    assert steps == list(range(1, 41)), "every record came home, and came once"
    assert lab.saved("left")["state"] == "completed"


def test_a_lost_terminal_leaves_the_job_and_an_interrupt_can_stop_it(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "hung-up", "--steps 900")
    command.wait_for(training)
    command.process.send_signal(signal.SIGHUP)
    run = command.end()
    assert run.code == 130
    assert run.result["state"] == "left"
    assert ansible_of(lab) == []
    assert processes.start_time(rank_pid(lab.root, "hung-up", "worker-0"))
    attached = Command(*lab.words("attach", "--json", "hung-up", "--on-interrupt", "stop"))
    attached.wait_for(training)
    attached.process.send_signal(signal.SIGINT)
    run = attached.end()
    assert run.code == 130
    assert run.result["state"] == "stopped"
    assert job_processes(lab.root) == []
    assert ansible_of(lab) == []


def test_ctrl_c_in_a_terminal_asks_what_to_do(local_lab: Labs) -> None:
    lab = local_lab()
    words = lab.words("run", "--job", "asked", "--script", str(PLAIN), arguments=["--steps", "900"])
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        os.execve(sys.executable, [sys.executable, "-m", "train", *words], environment())
    shown = ""

    def read_until(pattern: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, shown
            try:
                shown += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # it has ended
                pytest.fail(f"no {pattern!r} in: {shown}")

    read_until(r"training")
    os.write(terminal, b"\x03")
    read_until(r"asked: \[l\]eave it running, \[s\]top it, \[c\]ontinue watching\?")
    os.write(terminal, b"c\n")
    shown = ""
    read_until(r"training")
    os.write(terminal, b"\x03")
    read_until(r"ontinue watching\?")
    os.write(terminal, b"s\n")
    read_until(r"the job was stopped on every host")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert job_processes(lab.root) == []
    assert ansible_of(lab) == []


def test_attaching_to_a_job_that_has_failed(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(
        lab, "fell", "--steps 60 --fail worker-1 --seconds 1", "--on-interrupt", "leave"
    )
    command.wait_for(training)
    command.process.send_signal(signal.SIGINT)
    command.end()
    state = lab.root / "jobs/fell/worker-1/state.json"
    deadline = time.monotonic() + 30
    while (records.read_json(str(state)) or {})["phase"] != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    attached = Command(*lab.words("attach", "--json", "fell")).end()
    assert attached.code == 1
    message = attached.result["message"]
    assert message.startswith("worker-1 on worker1 exited with code 1: ModuleNotFoundError")
    assert job_processes(lab.root) == []


def test_the_playbook_ends_though_nobody_reads_its_output(local_lab: Labs) -> None:
    lab = local_lab()
    given = lab.given({"train_job_id": "unread", "train_job_script": str(PLAIN)})
    with subprocess.Popen(
        playbook_command("train.yml", lab.inventory, given),
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
    assert lab.saved("unread")["state"] == "completed"
