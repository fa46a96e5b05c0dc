"""Control nodes that leave, return, break or meet another one do not disturb the job."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.data_folders import small_disk
from tests.support.job_folders import jobs_in
from tests.support.jobs import (
    PLAIN,
    ansible_of,
    job_processes,
    plain,
    rank_pid,
    train,
    training,
    write_script,
)
from tests.support.lab import REPOSITORY, Command, Lab, Labs, environment, playbook_command
from train.host import processes, progress_records


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
    assert len(re.findall(r"0 left, port [0-9]+ free", stopped.stdout)) == 2
    assert job_processes(lab.root) == []
    again = lab.playbook("stop.yml", train_job_id="alone")
    assert again.returncode == 0
    assert "changed=0" in again.stdout


def test_an_interrupt_and_a_lost_terminal_leave_the_job_and_attach_brings_it_home(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, fast = local_lab(), tmp_path / "fast"
    command = plain(lab, "left", f"--steps 2000 --fast {fast}", "--on-interrupt", "leave")
    attach = lab.words("attach", "--json", "left")
    for signum in (signal.SIGINT, signal.SIGHUP):
        command.wait_for(training)
        command.process.send_signal(signum)
        run = command.end()
        assert run.code == 130
        assert run.result["state"] == "left"
        assert ansible_of(lab) == []
        assert processes.start_time(rank_pid(lab.root, "left", "worker-0"))
        command = Command(*attach)
    fast.touch()
    attached = command.end()
    assert attached.code == 0, attached.error
    progress = (lab.runs_dir / "left/progress/worker-1.jsonl").read_text()
    steps = [record["step"] for record in progress_records.parse_progress(progress)]
    assert steps == list(range(1, 2001)), "every record came home, and came once"
    assert lab.saved("left")["state"] == "completed"


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
            except OSError:  # the process has ended
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
    read_until(r"stopping the job on every host")
    read_until(r"job asked stopped: the job was stopped by \S+")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    os.close(terminal)
    saved = lab.saved("asked")
    assert (saved["state"], saved["attempts"], saved["restart"]) == ("stopped", 1, False)
    assert [rank["phase"] for rank in saved["ranks"]] == ["stopped"] * 2
    assert "stopped" in (lab.runs_dir / "asked/report.html").read_text()
    assert job_processes(lab.root) == []
    assert ansible_of(lab) == []


@pytest.mark.soak
def test_a_job_is_followed_to_its_end_though_nobody_reads_the_output(local_lab: Labs) -> None:
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
        while b"Start the ranks' supervisors" not in process.stdout.readline():
            assert process.poll() is None
        process.stdout.close()
        assert process.wait(60) == 0
    assert lab.saved("unread")["state"] == "completed"


@pytest.mark.soak
def test_no_process_follows_on_when_ansible_playbook_is_killed(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, fast = local_lab(), tmp_path / "fast"
    given = lab.given(
        {
            "train_job_id": "orphan",
            "train_job_script": str(PLAIN),
            "train_job_args": ["--steps", "2000", "--fast", str(fast)],
        }
    )
    with subprocess.Popen(
        playbook_command("train.yml", lab.inventory, given),
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            pid = rank_pid(lab.root, "orphan", "worker-1")
            wait_until((lab.runs_dir / "orphan/logs/worker-1.log").exists, "the watch")
            words = lab.words("attach", "--json", "orphan")
            refused = Command(*words).end().result
        finally:
            process.kill()
    assert refused["state"] == "refused"
    named = r"is already following this job: .* \(pid \d+ on .*train\.yml"
    assert re.search(named, refused["message"]), refused["message"]
    wait_until(lambda: ansible_of(lab) == [], "the end of its worker")
    assert processes.start_time(pid), "the job ended with its control node"
    fast.touch()
    attached = Command(*words).end()
    assert (attached.code, attached.result["state"]) == (0, "completed"), attached.error


def test_a_watch_that_breaks_leaves_the_job_running_and_attach_fetches_everything(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, fast = local_lab(), tmp_path / "fast"
    with small_disk(tmp_path / "small") as runs:
        lab.runs_dir = runs
        words = f"--steps 900 --fast {fast}"
        command = plain(lab, "broken", words, train_job_max_restarts=3)
        command.wait_for(training)
        # The watch is a process of Ansible, which can no longer read its files.
        (runs / "broken/events.jsonl").write_text('{"straggler": 1}\n' * 2000)
        run = command.end()
        assert run.code == 5
        assert "attach" in run.error
        assert len(job_processes(lab.root)) >= 2

        attach = lab.words("attach", "--json", "broken")
        command = Command(*attach)
        command.wait_for(training)
        ballast = runs / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(1 << 21))
        fast.touch()
        run = command.end()
        states = [json.loads(p.read_text()) for p in lab.root.glob("jobs/broken/*/state.json")]
        assert [(s["phase"], s["attempt"]) for s in states] == [("completed", 1)] * 2
        assert run.code == 5, run.result
        assert "attach" in run.result["message"]
        ballast.unlink()
        attached = Command(*attach).end()
        assert (attached.code, attached.result["state"]) == (0, "completed"), attached.error
        for rank in ("worker-0", "worker-1"):
            sent = (lab.root / "jobs/broken" / rank / "stdout.log").read_bytes()
            assert (runs / "broken/logs" / f"{rank}.log").read_bytes() == sent
        assert lab.saved("broken")["state"] == "completed"


LINES = [
    '{"metrics": 0.93}',
    '{"loss": ' + "9" * 400 + "}",
    '{"weights_sha256": ["a"]}',
    "[" * 5000,
    '{"step": {"a": 1}, "phase": ["\\u001b]52;c;aGk=\\u0007"]}',
    '{"phase": "\\u001b]52;c;aGk=\\u0007", "loss": NaN}',
]
OSC = "\x1b]52;c;ZXZpbA==\x07"
#: An interpreter of a host that adds to the output of every program, and to each result in it.
LIAR = """\
#!{python}
import json, subprocess, sys
done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
try:
    told = json.loads(done.stdout)
    for result in (told, *told.get("hosts", {{}}).values()):
        result.update(json.loads({lie!r}))
    print(json.dumps(told))
except ValueError:
    sys.stdout.buffer.write(done.stdout)
sys.exit(done.returncode)
"""


def test_what_a_host_says_ends_no_job_and_becomes_no_variable_and_no_command(
    local_lab: Labs, tmp_path: Path
) -> None:
    text = (
        "import os, time\n"
        f"for line in {LINES!r}:\n"
        "    with open(os.environ['TRAIN_PROGRESS_FILE'], 'a') as stream:\n"
        "        print(line, file=stream)\n"
        "    time.sleep(0.3)\n"
    )
    marker, python = tmp_path / "marker", tmp_path / "python3"
    facts = {"train_job_notify_command": f"touch {marker}", "train_job_notify_webhook": "x"}
    orders = {"ansible_facts": facts, "add_host": {"name": "evil", "host_vars": facts}}
    lie = json.dumps({**orders, "msg": f"a{OSC}b", "warnings": [f"w{OSC}"]})
    python.write_text(LIAR.format(python=sys.executable, lie=lie))
    python.chmod(0o755)
    lab = local_lab(worker=1)
    lab.variables["ansible_python_interpreter"] = str(python)
    lab.doubtful = True  # its last loss is NaN
    run = lab.run("--job", "odd", "--script", write_script(tmp_path, text))
    assert (run.code, run.result["state"]) == (0, "completed"), run.error
    shown = [event for event in run.events if event["event"] == "notice"]
    assert not [event for event in shown if "\x1b" in event["text"]]
    (passed,) = [event["text"] for event in shown if event["kind"] == "progress"]
    assert "ignoring line 1 of the rank's progress" in passed
    assert len(shown) > 1, "no warning of the host was shown"
    for name in ("status", "attach"):
        done = train(*lab.words(name, "odd"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\x1b" not in done.stdout
        assert "Traceback" not in done.stderr
    assert "\x1b]52" not in lab.playbook("status.yml", train_job_id="odd").stdout
    assert not marker.exists()


def test_two_control_nodes_do_not_both_start_a_gang_again(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    other = Lab(lab.inventory, tmp_path / "elsewhere", lab.variables)
    quick: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.1}
    # The first attempt lasts until both control nodes follow it.
    first = plain(lab, "shared", "--steps 20 --hang all --attempts 1 --slow-attempts 1", **quick)
    first.wait_for(training)
    second = Command(*other.words("attach", "--json", "shared", **quick))
    second.wait_for(training)
    os.kill(rank_pid(lab.root, "shared", "worker-1"), signal.SIGKILL)
    ends = [first.end(), second.end()]
    assert [(end.code, end.result["state"]) for end in ends] == [(0, "completed")] * 2
    for one in (lab, other):
        assert one.saved("shared")["state"] == "completed"
    # One gang was started after the first: no attempt was cut short by the other control node.
    states = [json.loads(path.read_text()) for path in lab.root.rglob("attempts/*/state.json")]
    assert not [state["reason"] for state in states if "another attempt" in state["reason"]]
    assert len(states) >= 2
    assert job_processes(lab.root) == []
    assert jobs_in(lab.root) == ["shared"]
