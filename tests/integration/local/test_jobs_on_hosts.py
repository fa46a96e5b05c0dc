"""``python -m train list`` and ``clean``: merged reports of the hosts, and removed jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.faults import host_variables
from tests.support.job_folders import DAY, jobs_in, lay_out
from tests.support.jobs import train
from tests.support.lab import Lab, Labs


def two_machines(lab: Lab) -> tuple[Path, Path]:
    """Make a lab of three hosts on two machines, simulated by folders; return their roots."""
    roots = (lab.inventory.parent / "one", lab.inventory.parent / "two")
    del lab.variables["train_job_root"]
    progress = {"step": 7, "steps": 9, "epoch": 2}
    for index, root in enumerate((roots[0], roots[0], roots[1])):
        task, host = f"worker-{index}", f"worker{index}"
        host_variables(lab, host, train_job_root=str(root))
        lay_out(root, "old", task, host=host, ago=20 * DAY)
        lay_out(root, "mid", task, host=host, ago=3 * DAY, progress=progress)
    # Ended long ago on one machine, alive on the other.
    lay_out(roots[0], "alive", "worker-0", host="worker0", ago=30 * DAY)
    lay_out(roots[1], "alive", "worker-1", host="worker2", phase="running", ago=30 * DAY)
    return roots


def test_the_jobs_of_all_hosts_are_listed_and_what_is_old_is_removed(local_lab: Labs) -> None:
    lab = local_lab(worker=3)
    one, two = two_machines(lab)
    done = train(*lab.words("list", "--json"))
    assert done.returncode == 0, done.stderr
    told = {job["job"]: job for job in json.loads(done.stdout)["jobs"]}
    assert list(told) == ["mid", "old", "alive"], "the newest first"
    mid, alive = told["mid"], told["alive"]
    assert (mid["state"], mid["attempt"], mid["alive"], mid["total"]) == ("completed", 1, 0, 3)
    assert mid["hosts"] == ["worker0", "worker1", "worker2"]
    assert mid["progress"] == {"step": 7, "steps": 9, "epoch": 2}
    assert 3 * DAY < mid["age"] < 3 * DAY + 600
    assert mid["size"] > 0
    assert mid["ended_at"] > mid["started_at"]
    assert mid["ranks"][0]["task"] == "worker-0"
    assert (alive["state"], alive["alive"], alive["ended_at"]) == ("mixed", 1, None)
    assert "hunter2" not in done.stdout

    before = jobs_in(one), jobs_in(two)
    assert before == (["alive", "mid", "old"], ["alive", "mid", "old"])

    done = train(*lab.words("clean", "--older-than", "14d", "--dry-run"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("worker0: would remove old (")
    assert lines[1] == "worker1: nothing to remove"
    assert lines[2].startswith("worker2: would remove old (")
    assert lines[3:] == ["kept alive: worker-1 is running"]
    assert (jobs_in(one), jobs_in(two)) == before

    lab.runs_dir.mkdir()
    (lab.runs_dir / "old").mkdir()
    done = train(*lab.words("clean", "--older-than", "14d"))
    assert done.returncode == 0, done.stderr
    assert "worker0: removed old (" in done.stdout
    assert (jobs_in(one), jobs_in(two)) == (["alive", "mid"], ["alive", "mid"])
    assert (lab.runs_dir / "old").is_dir(), "results on the control node are nobody's business"

    done = lab.playbook("clean.yml", train_job_clean_keep=0)
    assert done.returncode == 0, done.stdout
    assert "changed=1" in done.stdout
    assert (jobs_in(one), jobs_in(two)) == (["alive"], ["alive"])
    done = train(*lab.words("list"))
    header, row = [line.split() for line in done.stdout.splitlines()]
    assert (header[:3], row[:2]) == (["job", "state", "attempt"], ["alive", "mixed"])
    assert "1 of 2  worker0, worker2" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_playbooks_do_nothing_without_a_limit_or_a_job(local_lab: Labs) -> None:
    lab = local_lab(worker=1)
    lay_out(lab.root, "old", "worker-0", host="worker0")
    there = lay_out(
        lab.root, "there", "worker-0", host="worker0", phase="running", supervisor_pid=1
    )
    state = (there / "state.json").read_text()
    for name, said in (
        ("clean.yml", "nothing selected for removal"),
        ("stop.yml", "No job given: set train_job_id"),
    ):
        done = lab.playbook(name)
        assert done.returncode == 2
        assert said in done.stdout
    assert jobs_in(lab.root) == ["old", "there"]
    assert (there / "state.json").read_text() == state


@pytest.mark.parametrize("command", ["status", "logs"])
def test_a_job_that_is_nowhere(local_lab: Labs, command: str) -> None:
    lab = local_lab()
    lay_out(lab.root, "there", "worker-0", host="worker0")
    done = train(*lab.words(command, "elsewhere"))
    assert done.returncode == 2
    assert "has a rank of job elsewhere: `" in done.stderr
