"""A host of the cluster watches a job, while the machine that started it is cut off."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, wheels
from tests.support.bare_ranks import wait_until
from tests.support.jobs import (
    PLAIN,
    RING,
    rank_state,
    ssh_processes,
    train,
    training,
    write_script,
)
from tests.support.lab import REPOSITORY, Command, Lab, ansible_playbook, free_port
from tests.support.testbed import Rank, Testbed, running_testbed
from tests.support.testbed.engine import TestbedError

pytestmark = pytest.mark.docker

SECRET = "hunter2-is-secret"
ROOT = "/home/train/train/controller"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Yield three SSH hosts that can log in to one another, with all wheels that they need."""
    wheelhouse = REPOSITORY / ".cache/wheelhouse-controller"
    wheelhouse.mkdir(parents=True, exist_ok=True)
    wanted = {
        "tensorflow_framework": "none",
        "tensorflow_extra_requirements": str(REPOSITORY / "requirements/controller.txt"),
        "tensorflow_wheelhouse_source": str(wheelhouse),
    }
    done = ansible_playbook("wheelhouse.yml", Path("localhost,"), wanted)
    assert done.returncode == 0, done.stdout[-3000:]
    folder = tmp_path_factory.mktemp("controller")
    index = folder / "index"
    index.mkdir()
    wheels.write(index, "trainpack-1.0-py3-none-any", code="NAME = 'trainpack'\n")
    mounts = [f"{wheelhouse}:/wheelhouse:ro", f"{index}:/index:ro"]
    with running_testbed(3, folder, mounts=mounts) as made:
        roles = {
            "setup_roles": ["ssh_keys", "tensorflow"],
            "tensorflow_framework": "none",
            "tensorflow_wheelhouse": "/wheelhouse",
        }
        done = ansible_playbook("setup.yml", made.directory / "inventory", roles)
        assert done.returncode == 0, done.stdout[-3000:]
        yield made


@pytest.fixture
def lab(bed: Testbed, tmp_path: Path) -> Lab:
    ranks = [
        Rank(f"w{number}", host, {"train_job_port": free_port()})
        for number, host in enumerate(bed.hosts)
    ]
    variables = {
        "train_job_python": "/usr/bin/python3",
        "tensorflow_wheelhouse": "/wheelhouse",
        "train_job_restart_delay": 0.5,
        "train_job_update_interval": 0.5,
    }
    inventory = bed.write_inventory({"worker": ranks}, variables, path=tmp_path / "inventory")
    return Lab(inventory, tmp_path / "runs", doubtful=True)


def words_of(lab: Lab, job: str, script: Path | str, *options: str, **variables: Any) -> list[str]:
    return lab.words("run", "--job", job, "--script", str(script), *options, **variables)


@pytest.fixture
def ring(tmp_path: Path) -> str:
    """Return a script whose first attempt does not end by itself."""
    return write_script(tmp_path, RING)


def pids_of(bed: Testbed, host: str, pattern: str) -> list[int]:
    """Return the pids of the processes of a host whose command lines match."""
    found = bed.exec(host, "pgrep", "--full", pattern, check=False).stdout
    return [int(pid) for pid in found.split()]


@contextmanager
def cut_off(bed: Testbed) -> Iterator[None]:
    """Drop all packets from this machine on all hosts."""
    gateway = bed.hosts[0].address.rpartition(".")[0] + ".1"
    with ExitStack() as cuts:
        for host in bed.hosts:
            cuts.enter_context(faults.dropping(host, f"ip saddr {gateway} drop"))
        yield


def has_completed(bed: Testbed, host: str, job: str, task: str, attempt: int) -> bool:
    """Return whether a rank has completed in an attempt. Its state is missing between attempts."""
    try:
        state = rank_state(bed, host, job, task)
    except TestbedError:
        return False
    return (state["attempt"], state["phase"]) == (attempt, "completed")


def secret_places(bed: Testbed, host: str) -> str:
    """Return where other users of a host can read SECRET: command lines, and files."""
    # In brackets, so that the search does not find itself.
    pattern = f"[{SECRET[0]}]{SECRET[1:]}"
    search = (
        f"grep --files-with-matches --text --no-messages '{pattern}' /proc/[0-9]*/cmdline; "
        f"find /home /tmp -type f -perm /044 -exec grep --files-with-matches '{pattern}' {{}} +"
    )
    return bed.exec(host, "sh", "-c", search, check=False).stdout


def test_a_job_restarts_while_the_machine_that_started_it_is_cut_off(
    lab: Lab, bed: Testbed, ring: str, tmp_path: Path
) -> None:
    secret = {"API_TOKEN": SECRET, "BRACES": "{{ 6 * 7 }}"}
    options = ("--on", "w0", "--detach")
    words = words_of(lab, "night", ring, *options, train_job_environment=secret)
    done = train(*words)
    assert done.returncode == 0, done.stderr
    assert "host w0 watches job night and restarts it" in done.stderr
    connection = json.loads((lab.runs_dir / "night/connection.json").read_text())
    assert connection["controller"] == "w0"
    folder = f"{ROOT}/jobs/night"
    modes = bed.exec("host-0", "stat", "--format", "%a", folder, f"{folder}/inventory.yml").stdout
    assert modes.split() == ["700", "600"]
    with cut_off(bed):
        (rank,) = pids_of(bed, "host-1", "[m]ain.py")
        environment = bed.exec("host-1", "cat", f"/proc/{rank}/environ").stdout
        assert f"API_TOKEN={SECRET}" in environment
        assert "BRACES={{ 6 * 7 }}" in environment
        assert [secret_places(bed, host.name) for host in bed.hosts] == ["", "", ""]
        bed.exec("host-1", "kill", "-KILL", str(rank))
        wait_until(lambda: has_completed(bed, "host-1", "night", "worker-1", 2), "its end", 60)
    other = Lab(lab.inventory, tmp_path / "other runs", doubtful=True)
    run = Command(*other.words("attach", "--json", "night"), doubtful=True).end()
    assert run.code == 0, run.error
    assert (other.saved("night")["state"], other.saved("night")["attempts"]) == ("completed", 2)
    assert (other.runs_dir / "night/progress/worker-1.jsonl").read_text()
    done = train(*words_of(other, "night", ring, *options, train_job_runs_dir=str(tmp_path / "c")))
    assert done.returncode == 2, done.stderr
    assert "w0 has started a job night before" in done.stderr
    assert bed.exec("host-0", "ls", f"{folder}/runs/night/result.json").stdout
    assert SECRET not in "".join(
        path.read_text(errors="replace") for path in lab.runs_dir.rglob("*") if path.is_file()
    )


@pytest.mark.soak
def test_another_control_node_continues_without_the_host_that_watched(
    lab: Lab, bed: Testbed, ring: str
) -> None:
    """The ranks that remain cannot go on without the one on this host."""
    variables = {
        "train_job_min_workers": 2,
        "train_job_unreachable_timeout": 5,
        "train_job_restart_host_timeout": 0,
    }
    done = train(*words_of(lab, "lost", ring, "--on", "--detach", **variables))
    assert done.returncode == 0, done.stderr
    with faults.off(bed.host("host-0")):
        run = Command(*lab.words("attach", "--json", "lost"), doubtful=True).end(120)
        assert run.code == 0, run.error
        saved = lab.saved("lost")
        assert (saved["state"], saved["attempts"]) == ("completed", 2), saved["message"]
        assert [rank["host"] for rank in saved["ranks"]] == ["w1", "w2"]
        restarts = [event for event in run.events if event["event"] == "restart"]
        assert len(restarts) == 1
    assert ssh_processes(bed) == []


def test_the_host_that_watches_starts_the_next_attempt(lab: Lab, bed: Testbed, ring: str) -> None:
    """The machine that started the job follows it meanwhile, and later lets another host watch."""
    words = words_of(lab, "both", ring, "--on", "w2", "--json")
    command = Command(*words, doubtful=True)
    command.wait_for(training)
    (rank,) = pids_of(bed, "host-1", "[m]ain.py")
    bed.exec("host-1", "kill", "-KILL", str(rank))
    run = command.end(120)
    assert run.code == 0, run.error
    assert lab.saved("both")["attempts"] == 2
    log = bed.exec("host-2", "cat", f"{ROOT}/jobs/both/runs/both/watch.log").stdout
    assert "job both completed after 2 attempts" in log, log
    assert "starting 3 ranks" in log.partition("worker-1 on w1: failed")[2], log
    assert "another control node" not in log, log

    done = train(*lab.words("restart", "both", "--on", "w0", "--detach"))
    assert done.returncode == 0, done.stderr
    done = train(*lab.words("stop", "both"))
    assert done.returncode == 0, done.stderr
    log_path = f"{ROOT}/jobs/both/runs/both/watch.log"
    wait_until(
        lambda: "job both stopped" in bed.exec("host-0", "cat", log_path).stdout, "its end", 60
    )
    wait_until(
        lambda: pids_of(bed, "host-0", "from train.cli import background") == [],
        "the watch's end",
        30,
    )


def test_the_host_that_watches_installs_the_scripts_packages(lab: Lab, tmp_path: Path) -> None:
    """The script's index is a folder of the hosts only."""
    script = write_script(tmp_path, "import trainpack\nprint(trainpack.NAME, 'imported')\n")
    lines = "--no-index\n--find-links /index\ntrainpack\n"
    Path(script).with_name("requirements.txt").write_text(lines, encoding="utf-8")
    given = {"train_job_framework": "none", "train_job_python": "~/train/venv-bare/bin/python"}
    done = train(*words_of(lab, "packed", script, "--on", "w0", "--requirements", **given))
    assert done.returncode == 0, done.stderr
    log = (lab.runs_dir / "packed/logs/worker-2.log").read_text(encoding="utf-8")
    assert log == "trainpack imported\n"


def test_an_interrupted_start_leaves_nothing(lab: Lab, bed: Testbed) -> None:
    asleep = ["--asleep", "worker-1"]
    command = Command(*words_of(lab, "soon", PLAIN, "--on", "w0", arguments=asleep))
    wait_until(lambda: pids_of(bed, "host-1", "[m]ain.py") != [], "a rank", 60)
    command.process.send_signal(signal.SIGINT)
    run = command.end(120)
    assert run.code == 130, run.error
    assert "job soon was stopped" in run.error
    assert ssh_processes(bed) == []
    assert pids_of(bed, "host-0", "from train.cli import background") == []
    assert not (lab.runs_dir / "soon").exists()


def test_a_host_that_cannot_reach_the_others_is_named(lab: Lab, bed: Testbed) -> None:
    bed.exec("host-0", "mv", ".ssh/config", ".ssh/config.away")
    bed.exec("host-0", "pkill", "--full", "ClearAllForwardings", check=False)  # open connections
    try:
        done = train(*words_of(lab, "alone", PLAIN, "--on", "w0"))
    finally:
        bed.exec("host-0", "mv", ".ssh/config.away", ".ssh/config")
    assert done.returncode == 4, done.stderr
    assert "w0 must be able to log in to all other hosts by SSH" in done.stderr
    assert "--tags ssh_keys" in done.stderr
    assert "w1" in done.stderr
    assert not (lab.runs_dir / "alone").exists()
    assert bed.exec("host-0", "ls", f"{ROOT}/jobs/alone", check=False).returncode != 0
    assert ssh_processes(bed) == []
