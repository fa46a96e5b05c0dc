"""The drill: what it does to ranks, what it says of them, and what it keeps its hands off."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Lab, environment
from tests.test_local_jobs import PLAIN, job_processes, training
from tests.test_ssh_jobs import job_processes as ssh_processes
from tests.testbed import Testbed
from train.control.drill import Row, is_well
from train.host import faults, processes

Labs = Callable[..., Lab]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "train", *words],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_a_row_is_well_where_nothing_went_wrong_and_nothing_is_left() -> None:
    good = Row("kill", "worker-1 on b", detected=1.04, named=True, left=0, resumed=40)
    assert good.cells == ["kill", "worker-1 on b", "1.0 s", "yes", "nothing", "step 40", "well"]
    assert is_well(good)
    assert not is_well(Row("kill", "worker-1 on b", left=2, named=True))
    assert not is_well(Row("kill", "worker-1 on b", left=0, named=False, trouble="worker-0: exit"))
    skipped = Row("port", "worker-1 on b", trouble="it needs root", skipped=True)
    assert skipped.cells[2] == "left out"
    assert is_well(skipped)


def test_ranks_are_killed_and_frozen() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as script:
        state = {"pid": script.pid, "pid_start": processes.start_time(script.pid)}
        faults.inject(faults.FREEZE, state, 1.0)
        deadline = time.monotonic() + 5
        while not processes.is_stopped(script.pid):
            assert time.monotonic() < deadline
        faults.inject(faults.KILL, state, 1.0)
        assert script.wait() == -signal.SIGKILL
    with pytest.raises(faults.FaultError, match="the rank does not run"):
        faults.inject(faults.KILL, state, 1.0)


def test_what_needs_root_is_left_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for fault in (faults.PORT, faults.SSH):
        with pytest.raises(faults.FaultError, match="it needs root: set ansible_become"):
            faults.inject(fault, {"port": 1}, 1.0)


#: In a network of its own: what reaches the port before, while it is dropped, and after.
DROPPED = """
import os, shutil, socket, sys, time
sys.path.insert(0, sys.argv[1])
from host import faults

if sys.argv[2] == "iptables":
    shutil.which = lambda name, which=shutil.which: None if name == "nft" else which(name)
server = socket.create_server(("127.0.0.1", 12345))

def reached():
    try:
        socket.create_connection(("127.0.0.1", 12345), 0.5).close()
        return True
    except TimeoutError:
        return False

told = [reached()]
faults.inject(faults.PORT, {"port": 12345}, 2.0)
began = time.monotonic()
told.append(reached())
while not reached():
    assert time.monotonic() < began + 10
print(told)
"""


@pytest.mark.parametrize("program", ["nft", "iptables"])
def test_a_port_is_dropped_for_a_while(program: str) -> None:
    if os.geteuid() or not shutil.which(program) or not shutil.which("unshare"):
        pytest.skip(f"needs root, {program} and unshare")
    words = [sys.executable, "-c", DROPPED, str(REPOSITORY / "train"), program]
    inside = f"ip link set lo up && exec {shlex.join(words)}"
    command = ["unshare", "--net", "sh", "-c", inside]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[True, False]\n", done.stderr


def test_only_jobs_of_a_drill_can_be_hurt(local_lab: Labs) -> None:
    hurt = {"train_job_fault": "kill", "train_job_fault_host": "worker0"}
    done = local_lab().playbook("fault.yml", train_job_id="night-1", **hurt)
    assert done.returncode == 2
    assert "night-1 is no job of a drill" in done.stdout


def test_no_drill_beside_a_real_job(local_lab: Labs) -> None:
    lab = local_lab()
    command = lab.start("--job", "real", "--script", str(PLAIN), arguments=["--steps", "900"])
    command.wait_for(training)
    done = run(*lab.words("drill", "--fault", "kill"))
    assert done.returncode == 2
    assert "no drill beside a real job: real on " in done.stderr
    assert run(*lab.words("stop", "real")).returncode == 0
    command.end()


@pytest.mark.tensorflow
def test_the_playbook_tells_what_became_of_a_killed_rank(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab()
    variables = {**lab.variables, "train_job_python": tf_python}
    variables |= {"train_job_runs_dir": str(lab.runs_dir), "train_job_max_restarts": 2}
    done = lab.playbook("drill.yml", drill_faults=["kill"], drill_variables=variables)
    assert done.returncode == 0, done.stdout
    assert "worker-1 on worker1" in done.stdout
    assert "yes" in done.stdout
    assert "well" in done.stdout
    assert job_processes(Path(lab.variables["train_job_root"])) == []


@pytest.mark.docker
@pytest.mark.tensorflow
def test_ssh_is_stopped_by_root_and_the_job_does_not_mind(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    done = run(*lab.words("drill", "--fault", "ssh", "--fault-become"))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("ssh  ")]
    assert row == ["ssh", "worker-1", "on", "worker1", "-", "-", "nothing", "-", "well"]
    assert ssh_processes(testbed) == []
