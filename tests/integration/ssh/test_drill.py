"""The drill: its faults, its report, and the jobs and hosts that it does not touch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.jobs import PLAIN, job_processes, ssh_processes, train, training, write_script
from tests.support.lab import REPOSITORY, Labs, clean_environment, run
from tests.support.lease_ranks import Starter, holder
from tests.support.testbed import Testbed
from tests.support.training_ranks import WORKER
from train.cli import drill
from train.host import faults, processes
from train.host.records import RankState


def test_ranks_are_killed_and_frozen() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as script:
        state: RankState = {"pid": script.pid, "pid_start": processes.start_time(script.pid)}
        faults.inject(faults.FREEZE, state, 1.0)
        wait_until(lambda: processes.is_stopped(script.pid), "the freeze", timeout=5)
        faults.inject(faults.KILL, state, 1.0)
        assert script.wait() == -signal.SIGKILL
    with pytest.raises(faults.FaultError, match="the rank is not running"):
        faults.inject(faults.KILL, state, 1.0)


def test_what_needs_root_is_left_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for fault in (faults.PORT, faults.SSH):
        with pytest.raises(faults.FaultError, match="this fault needs root: set ansible_become"):
            faults.inject(fault, {"port": 1}, 1.0)


#: The processes that revert a fault, which are forks of the one that injects it.
HELPERS = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from train.host import faults, processes
from train.host.records import RankState

def read(name):
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except OSError:
        return b""

def helpers():
    words = read("/proc/self/cmdline")
    alive = [pid for pid in processes.snapshot() if pid != os.getpid()]
    return sorted(pid for pid in alive if read("/proc/%d/cmdline" % pid) == words)

def until(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
"""
#: In a separate network namespace: packets that reach the port before, during and after a fault.
DROPPED = (
    HELPERS
    + """
import shutil, socket

program, address, kills = sys.argv[2:]
if program == "iptables":
    shutil.which = lambda name, which=shutil.which: None if name == "nft" else which(name)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.create_server((address, 12345), family=family)

def reached():
    try:
        socket.create_connection((address, 12345), 0.5).close()
        return True
    except TimeoutError:
        return False

results = [reached()]
faults.inject(faults.PORT, {"port": 12345}, 2.0)
for pid in helpers() if kills == "killed" else []:
    os.kill(pid, signal.SIGKILL)
results.append(reached())
until(reached)
if kills == "killed":
    faults.inject(faults.PORT, {"port": 12345}, 2.0)
    results.append(reached())
until(lambda: not helpers())
print(results)
"""
)
#: In a separate pid namespace: a process named sshd is stopped, and continues even if a helper is
#: killed.
STOPPED = (
    HELPERS
    + """
import subprocess

sshd = subprocess.Popen([sys.argv[2], "600"])
until(lambda: read("/proc/%d/comm" % sshd.pid) == b"sshd\\n")
for which in (0, 1):
    faults.inject(faults.SSH, {}, 2.0)
    until(lambda: processes.is_stopped(sshd.pid))
    both = helpers()
    assert len(both) == 2, both
    os.kill(both[which], signal.SIGKILL)
    assert processes.is_stopped(sshd.pid)
    until(lambda: not processes.is_stopped(sshd.pid))
    until(lambda: not helpers())
sshd.kill()
print("went on twice")
"""
)


def isolated(options: list[str], script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script under ``unshare``."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    command = [sys.executable, "-c", script, str(REPOSITORY / "train"), *words]
    inside = f"ip link set lo up; exec {shlex.join(command)}"
    return subprocess.run(
        ["unshare", *options, "sh", "-c", inside],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "address", "helper", "reached"),
    # Rules that a killed helper has left do not disturb the next drill.
    [
        ("nft", "::1", "killed", [True, False, False]),
        ("iptables", "127.0.0.1", "left alone", [True, False]),
    ],
)
def test_a_port_is_dropped_for_a_while(
    program: str, address: str, helper: str, reached: list[bool]
) -> None:
    if not shutil.which(program):
        pytest.skip(f"needs {program}")
    done = isolated(["--net"], DROPPED, program, address, helper)
    assert done.stdout == f"{reached}\n", done.stderr


def test_sshd_continues_where_a_helper_was_killed(tmp_path: Path) -> None:
    sshd = shutil.copy(shutil.which("sleep") or "", tmp_path / "sshd")
    done = isolated(["--pid", "--fork", "--mount-proc", "--net"], STOPPED, str(sshd))
    assert done.stdout == "went on twice\n", done.stderr


def test_faults_are_for_jobs_of_a_drill_only(local_lab: Labs) -> None:
    fault = {"train_job_fault": "kill", "train_job_fault_host": "worker0"}
    done = local_lab().playbook("fault.yml", train_job_id="night-1", **fault)
    assert done.returncode == 2
    assert "night-1 is not a drill job" in done.stdout


@pytest.mark.soak
def test_no_drill_beside_a_real_job(local_lab: Labs) -> None:
    lab = local_lab()
    command = lab.start("--job", "real", "--script", str(PLAIN), arguments=["--steps", "900"])
    command.wait_for(training)
    done = train(*lab.words("drill", "--fault", "kill"))
    assert done.returncode == 2
    assert "the drill cannot run alongside other jobs: wait until real on " in done.stderr
    assert train(*lab.words("stop", "real")).returncode == 0
    command.end()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
def test_no_drill_beside_a_job_of_another_user(local_lab: Labs, supervisor: Starter) -> None:
    lab = local_lab()
    # Other users cannot enter pytest's own folder.
    with tempfile.TemporaryDirectory(prefix="test-drill-", dir="/tmp") as parent:
        Path(parent).chmod(0o1777)
        folder = Path(parent, "leases")
        lab.variables["train_job_lease_dir"] = str(folder)
        other = supervisor()
        other.ask("setuid", 12_001)
        assert other.starts(folder, holder("theirs")) is None
        done = train(*lab.words("drill", "--fault", "kill"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(
        r"the drill cannot run alongside other jobs: worker[01] is in use by worker-0",
        done.stderr,
    )
    assert "job theirs (user uid 12001, since " in done.stderr
    assert not lab.runs_dir.exists(), "a job was started"


#: Accepts the arguments of the program of a drill's job, and takes 20 s. The second attempt resumes
#: and ends.
STEPS = """
import json, os, time
first = os.environ["TRAIN_ATTEMPT"] == "1"
if not first:
    print("resumed at step 20")
for step in range(200 if first else 0):
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        print(json.dumps({"phase": "training", "step": step}), file=stream)
    time.sleep(0.1)
"""


#: Runs a drill with a script instead of the training program.
DRILL = """
import sys
from train.cli import drill, main

drill.WORKER = sys.argv[1]
sys.exit(main.main(sys.argv[2:]))
"""


def drilled(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", DRILL, script, *words)


def test_the_program_takes_the_drills_arguments() -> None:
    command = (sys.executable, str(WORKER), "--check", *drill.ARGUMENTS)
    done = run(*command, env=clean_environment())
    assert done.returncode == 0, done.stderr


def test_it_tells_what_became_of_a_killed_rank(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    script = write_script(tmp_path, STEPS)
    done = drilled(script, *lab.words("drill", "--fault", "kill", train_job_max_restarts=2))
    assert done.returncode == 0, done.stdout + done.stderr
    row = r"kill +worker-1 on worker1 +[0-9.]+ s +yes +nothing +step 20 +ok"
    assert re.search(row, done.stdout), done.stdout
    assert job_processes(lab.root) == []


@pytest.mark.soak
@pytest.mark.docker
def test_ssh_is_stopped_by_root_and_the_job_does_not_mind(
    ssh_lab: Labs, testbed: Testbed, tmp_path: Path
) -> None:
    script, python = write_script(tmp_path, STEPS), {"train_job_python": "/usr/bin/python3"}
    lab = ssh_lab(worker=2)
    done = drilled(script, *lab.words("drill", "--fault", "ssh", "--fault-become", **python))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("ssh  ")]
    assert row == ["ssh", "worker-1", "on", "worker1", "-", "-", "nothing", "-", "ok"]
    assert ssh_processes(testbed) == []
