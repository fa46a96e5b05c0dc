"""``python -m train list`` and ``clean``: what the hosts know, put together, and what goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Lab, environment
from tests.job_folders import DAY, jobs_in, lay_out, write_manifest
from train.cli.commands import receipt_line
from train.gang import listing
from train.gang.plan.ranks import PlanError
from train.host import jobs as host_jobs

Labs = Callable[..., Lab]


def rank(task: str, phase: str, *, service: bool = False, idle: float = DAY) -> dict[str, Any]:
    return {"task": task, "phase": phase, "service": service, "idle": idle}


@pytest.mark.parametrize(
    ("ranks", "state"),
    [
        ([rank("worker-0", "running"), rank("worker-1", "running")], "running"),
        ([rank("worker-0", "running"), rank("worker-1", "starting")], "starting"),
        ([rank("worker-0", "running"), rank("worker-1", "absent", idle=5)], "starting"),
        ([rank("worker-0", "running"), rank("worker-1", "failed")], "mixed"),
        ([rank("worker-0", "completed"), rank("worker-1", "running")], "mixed"),
        ([rank("worker-0", "completed"), rank("worker-1", "completed")], "completed"),
        ([rank("worker-0", "stopped"), rank("worker-1", "failed")], "failed"),
        ([rank("worker-0", "stopped"), rank("worker-1", "completed")], "stopped"),
        ([rank("worker-0", "absent"), rank("worker-1", "absent")], "failed"),
        ([rank("chief-0", "running"), rank("ps-0", "failed", service=True)], "running"),
        ([rank("chief-0", "completed"), rank("ps-0", "stopped", service=True)], "completed"),
        ([rank("chief-0", "completed"), rank("ps-0", "running", service=True)], "mixed"),
    ],
)
def test_the_state_of_a_job(ranks: list[dict[str, Any]], state: str) -> None:
    assert listing.state_of(ranks) == state


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("12h", 43_200),
        ("14d", 14 * DAY),
        ("2w", 14 * DAY),
        ("1.5h", 5400),
    ],
)
def test_ages(text: str, seconds: float) -> None:
    assert listing.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "14", "d", "14 d", "-1d", "1y", "d14", "1e3s"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is no age: give a number with s, m, h, d or w"):
        listing.seconds_of(text)


def look(root: Path) -> list[dict[str, Any]]:
    return host_jobs.look(str(root))


def test_hosts_that_share_a_machine_tell_of_each_rank_once(tmp_path: Path) -> None:
    for index in (0, 1):
        lay_out(tmp_path / "one", "night", f"worker-{index}", host=f"node-{index}")
    lay_out(tmp_path / "two", "night", "worker-2", host="node-2", phase="failed")
    told = {"node-0": look(tmp_path / "one"), "node-1": look(tmp_path / "one")}
    (job,) = listing.merge({**told, "node-2": look(tmp_path / "two")})
    assert [rank["task"] for rank in job["ranks"]] == ["worker-0", "worker-1", "worker-2"]
    assert job["hosts"] == ["node-0", "node-1", "node-2"]
    assert (job["state"], job["alive"], job["total"]) == ("failed", 0, 3)
    parts = [look(tmp_path / name)[0]["size"] for name in ("one", "two")]
    assert job["size"] == sum(parts)
    assert listing.where([job]) == {"node-0": ["night"], "node-2": ["night"]}


def test_a_rank_that_another_attempt_made_another_task_is_stale(tmp_path: Path) -> None:
    lay_out(tmp_path / "a", "night", "worker-0", host="node-a")
    write_manifest(tmp_path / "a", "night", [{"worker-0": "node-a", "worker-1": "node-b"}])
    # Node b was worker-1 first, then worker-0 alone.
    lay_out(tmp_path / "b", "night", "worker-1", host="node-b", phase="stopped")
    lay_out(tmp_path / "b", "night", "worker-0", host="node-b", phase="running", attempt=2)
    attempts = [{"worker-0": "node-a", "worker-1": "node-b"}, {"worker-0": "node-b"}]
    write_manifest(tmp_path / "b", "night", attempts)
    (job,) = listing.merge({"node-a": look(tmp_path / "a"), "node-b": look(tmp_path / "b")})
    assert (job["attempt"], job["state"], job["alive"], job["total"]) == (2, "running", 1, 1)
    assert [(rank["task"], rank["host"]) for rank in job["ranks"]] == [("worker-0", "node-b")]
    assert len(job["stale"]) == 2
    assert job["members"] == ["node-a", "node-b"]


def test_of_two_machines_that_see_one_folder_the_one_that_runs_it_knows(tmp_path: Path) -> None:
    lay_out(tmp_path, "night", "worker-0", host="node-a", phase="running")
    here = look(tmp_path)
    there = json.loads(json.dumps(here))
    there[0]["ranks"][0]["phase"] = "failed"
    for told in ({"a": here, "b": there}, {"b": there, "a": here}):
        (job,) = listing.merge(told)
        assert (job["state"], job["alive"], job["total"]) == ("running", 1, 1)


def old_jobs(root: Path) -> list[dict[str, Any]]:
    """Return five jobs, the newest first: a day, two, three, four and five days old."""
    for days in range(1, 6):
        lay_out(root, f"day-{days}", "worker-0", host="node-a", ago=days * DAY)
    return listing.merge({"node-a": look(root)})


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({"older_than": 2.5 * DAY}, ["day-3", "day-4", "day-5"]),
        ({"keep": 3}, ["day-4", "day-5"]),
        ({"keep": 0}, ["day-1", "day-2", "day-3", "day-4", "day-5"]),
        ({"keep": 9}, []),
        ({"older_than": 3.5 * DAY, "keep": 1}, ["day-4", "day-5"]),
        ({"older_than": 0.5 * DAY, "keep": 4}, ["day-5"]),
    ],
)
def test_what_is_old_by_age_and_number(
    tmp_path: Path, limits: dict[str, Any], removed: list[str]
) -> None:
    old, kept = listing.choose_old(old_jobs(tmp_path), [], **limits)
    assert [job["job"] for job in old] == removed
    assert kept == []


@pytest.mark.parametrize(
    ("limits", "said"),
    [({}, "there is no limit to what is removed"), ({"keep": -1}, "the limit is 0 or more")],
)
def test_limits_that_are_none(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        listing.choose_old([], [], **limits)


def test_a_job_that_runs_on_one_host_goes_from_none(tmp_path: Path) -> None:
    lay_out(tmp_path / "a", "night", "worker-0", host="node-a", ago=9 * DAY)
    lay_out(tmp_path / "b", "night", "worker-1", host="node-b", phase="running", ago=9 * DAY)
    told = {"node-a": look(tmp_path / "a"), "node-b": look(tmp_path / "b")}
    assert listing.choose_old(listing.merge(told), [], keep=0) == (
        [],
        ["night: worker-1 is running"],
    )


def test_a_rank_of_an_earlier_attempt_that_still_runs_keeps_the_job(tmp_path: Path) -> None:
    lay_out(tmp_path / "a", "night", "worker-1", host="node-a", phase="running", ago=9 * DAY)
    lay_out(tmp_path / "b", "night", "worker-0", host="node-b", ago=8 * DAY, attempt=2)
    write_manifest(tmp_path / "b", "night", [{"worker-1": "node-a"}, {"worker-0": "node-b"}])
    told = {"node-a": look(tmp_path / "a"), "node-b": look(tmp_path / "b")}
    assert listing.choose_old(listing.merge(told), [], keep=0) == (
        [],
        ["night: worker-1 is running"],
    )


def test_a_host_that_tells_nothing_keeps_the_jobs_it_took_part_in(tmp_path: Path) -> None:
    for name, members in {"with": ["node-a", "node-b"], "without": ["node-a"]}.items():
        lay_out(tmp_path, name, "worker-0", host="node-a", ago=9 * DAY)
        tasks = {f"worker-{index}": host for index, host in enumerate(members)}
        write_manifest(tmp_path, name, [tasks, {"worker-0": "node-a"}])
    lay_out(tmp_path, "unknown", "worker-0", host="node-a", ago=9 * DAY)
    old, kept = listing.choose_old(listing.merge({"node-a": look(tmp_path)}), ["node-b"], keep=0)
    assert [job["job"] for job in old] == ["without"]
    why = "node-b told nothing, where a rank may be alive"
    assert sorted(kept) == [f"unknown: {why}", f"with: {why}"]


def train(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "train", *words],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def two_machines(lab: Lab) -> tuple[Path, Path]:
    """Make a lab of three hosts on two machines, as far as folders go, and return their roots."""
    roots = (lab.inventory.parent / "one", lab.inventory.parent / "two")
    path = lab.inventory / "hosts.yml"
    inventory = json.loads(path.read_text())
    members = inventory["all"]["children"]["worker"]["hosts"]
    for host, root in zip(members, (roots[0], roots[0], roots[1]), strict=True):
        members[host]["train_job_root"] = str(root)
    path.write_text(json.dumps(inventory))
    del lab.variables["train_job_root"]
    for index, root in enumerate((roots[0], roots[0], roots[1])):
        for job, ago in {"old": 20 * DAY, "mid": 3 * DAY}.items():
            task = f"worker-{index}"
            lay_out(
                root,
                job,
                task,
                host=f"worker{index}",
                ago=ago,
                progress={"step": 7, "steps": 9, "epoch": 2} if job == "mid" else None,
            )
    # Ended long ago on one machine, alive on the other.
    lay_out(roots[0], "alive", "worker-0", host="worker0", ago=30 * DAY)
    lay_out(roots[1], "alive", "worker-1", host="worker2", phase="running", ago=30 * DAY)
    return roots


def test_list_tells_the_jobs_of_all_hosts(local_lab: Labs) -> None:
    lab = local_lab(worker=3)
    two_machines(lab)
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

    done = train(*lab.words("list"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:3] == ["job", "state", "attempt"]
    assert [line[:2] for line in lines[1:]] == [
        ["mid", "completed"],
        ["old", "completed"],
        ["alive", "mixed"],
    ]
    assert "0 of 3  worker0, worker1, worker2" in done.stdout
    assert "step 7/9, epoch 2" in done.stdout
    assert "\x1b" not in done.stdout


def test_clean_removes_what_is_old_on_every_host(local_lab: Labs) -> None:
    lab = local_lab(worker=3)
    one, two = two_machines(lab)
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
    assert train(*lab.words("list")).stdout.count("alive") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "there is no limit to what is removed: give --older-than AGE or --keep N"),
        (["--older-than", "14"], "'14' is no age: give a number with s, m, h, d or w"),
        (["--keep", "-1"], "the limit is 0 or more"),
        (["--keep", "few"], "the limit is 0 or more"),
    ],
)
def test_clean_without_a_good_limit_is_refused(
    local_lab: Labs, options: list[str], said: str
) -> None:
    lab = local_lab(worker=1)
    root = Path(lab.variables["train_job_root"])
    lay_out(root, "old", "worker-0", host="worker0")
    done = train(*lab.words("clean", *options))
    assert done.returncode == 2
    assert said in done.stderr
    assert jobs_in(root) == ["old"]


def test_the_playbook_asks_for_a_limit_too(local_lab: Labs) -> None:
    lab = local_lab(worker=1)
    root = Path(lab.variables["train_job_root"])
    lay_out(root, "old", "worker-0", host="worker0")
    done = lab.playbook("clean.yml")
    assert done.returncode == 2
    assert "There is no limit to what is removed" in done.stdout
    assert jobs_in(root) == ["old"]


def test_list_where_there_is_nothing(local_lab: Labs) -> None:
    done = train(*local_lab().words("list"))
    assert (done.returncode, done.stdout) == (0, "no jobs\n")


@pytest.mark.parametrize("command", ["stop", "logs"])
def test_a_job_that_is_nowhere(local_lab: Labs, command: str) -> None:
    lab = local_lab()
    lay_out(Path(lab.variables["train_job_root"]), "there", "worker-0", host="worker0")
    done = train(*lab.words(command, "elsewhere"))
    assert done.returncode == 1
    assert "has a rank of job elsewhere: `python -m train list` tells" in done.stderr


def test_stop_without_a_job_is_refused(local_lab: Labs) -> None:
    lab = local_lab()
    root = Path(lab.variables["train_job_root"])
    lay_out(root, "there", "worker-0", host="worker0", phase="running", supervisor_pid=1)
    state = (root / "jobs/there/worker-0/state.json").read_text()
    for words in (["stop"], ["stop", ""]):
        done = train(words[0], *lab.words("")[1:], *words[1:])
        assert done.returncode == 2, done.stderr
    done = lab.playbook("stop.yml")
    assert done.returncode == 2
    assert "There is no job to stop: set train_job_id" in done.stdout
    assert (root / "jobs/there/worker-0/state.json").read_text() == state


RECEIPT = {"was": "running", "phase": "stopped", "remaining": [], "ended": 3, "port": 12345}


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        (
            {**RECEIPT, "port_free": True, "gpu_memory_free": True},
            "running -> stopped, 3 processes ended, 0 left, port 12345 free, GPU memory back",
        ),
        (
            {**RECEIPT, "port_free": None, "ended": 1, "remaining": [7]},
            "running -> stopped, 1 process ended, 1 left",
        ),
        ({**RECEIPT, "port_free": None, "was": "absent"}, "no rank of the job"),
    ],
)
def test_receipts(receipt: dict[str, Any], line: str) -> None:
    assert receipt_line(receipt) == line
