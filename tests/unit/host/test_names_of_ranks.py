"""The ranks that an inventory host answers for, whatever names the job was started under."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import lay_out
from train.host import calls, processes, rank_files, ranks, records, staging

HERE = processes.machine()
RESTARTED = "/".join(["another-boot", *HERE.split("/")[1:]])
ELSEWHERE = "boot/other-machine/net:[1]"


def rank(root: Path, task: str, host: str, machine: str = HERE, **about: Any) -> None:
    """Create the folder of a rank that was staged on a machine."""
    path = lay_out(root, "night", task, host=host, **about) / "rank.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": machine}))


def answers(root: Path, beside: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tasks that each of the inventory hosts of this machine answers for."""
    found = {name: ranks.find(str(root), name, "night", beside, names) for name in beside}
    return {name: [Path(path).name for path in paths] for name, paths in found.items()}


def test_each_host_answers_for_its_own_rank(tmp_path: Path) -> None:
    rank(tmp_path, "worker-0", "a")
    rank(tmp_path, "worker-1", "b")
    assert answers(tmp_path, ["a", "b"], ["a", "b", "c"]) == {"a": ["worker-0"], "b": ["worker-1"]}


@pytest.mark.parametrize("machine", [HERE, RESTARTED])
def test_ranks_with_names_of_another_inventory_are_shared_out(tmp_path: Path, machine: str) -> None:
    for task, host in (("worker-0", "10.0.0.1"), ("worker-2", "10.0.0.3"), ("ps-0", "10.0.0.4")):
        rank(tmp_path, task, host, machine)
    rank(tmp_path, "worker-1", "a", machine)
    assert answers(tmp_path, ["a", "b", "c"], ["a", "b", "c"]) == {
        "a": ["worker-1"],
        "b": ["worker-0", "ps-0"],
        "c": ["worker-2"],
    }
    assert answers(tmp_path, ["x"], ["x"]) == {"x": ["worker-0", "worker-1", "worker-2", "ps-0"]}


def test_without_a_job_the_newest_with_a_rank_of_the_host_is_meant(tmp_path: Path) -> None:
    lay_out(tmp_path, "mine", "worker-0", host="a", ago=9)
    lay_out(tmp_path, "mine", "worker-1", host="b", ago=9)
    path = lay_out(tmp_path, "strange", "worker-0", host="10.0.0.1", ago=1) / "rank.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": HERE}))
    jobs = {
        name: [Path(found).parent.name for found in ranks.find(str(tmp_path), name, "", [name], "")]
        for name in ("a", "c")
    }
    assert jobs == {"a": ["mine"], "c": ["strange"]}


def test_what_is_seen_of_another_machine_in_a_shared_folder_is_its_own_business(
    tmp_path: Path,
) -> None:
    rank(tmp_path, "worker-0", "a")
    rank(tmp_path, "worker-1", "b", ELSEWHERE)
    rank(tmp_path, "worker-2", "10.0.0.3", ELSEWHERE)
    assert answers(tmp_path, ["a"], ["a", "b"]) == {"a": ["worker-0"]}
    assert answers(tmp_path, ["x"], ["x", "y"]) == {"x": ["worker-0"]}


def test_names_that_were_exchanged_between_machines(tmp_path: Path) -> None:
    rank(tmp_path, "worker-0", "b")
    assert answers(tmp_path, ["a"], ["a", "b"]) == {"a": ["worker-0"]}


def test_of_earlier_attempts_only_what_is_alive_counts_under_other_names(tmp_path: Path) -> None:
    rank(tmp_path, "worker-0", "10.0.0.1")
    rank(tmp_path, "worker-1", "10.0.0.2", phase=records.RUNNING)
    rank(tmp_path, "worker-2", "a", attempt=2)
    assert answers(tmp_path, ["a"], ["a"]) == {"a": ["worker-2", "worker-1"]}


def test_all_ranks_of_a_host_are_reported_and_stopped(tmp_path: Path) -> None:
    for index in (0, 1):
        rank(tmp_path, f"worker-{index}", f"10.0.0.{index}")
    given = {"root": str(tmp_path), "job": "night", "host": "x", "beside": ["x"], "names": ["x"]}
    seen = calls.state(given)
    tasks = [one["rank"]["task"] for one in (seen, *seen["more"])]
    assert tasks == ["worker-0", "worker-1"]
    done = calls.stop({**given, "check": False, "permanent": True, "grace": 0, "reason": "x"})
    assert [one["was"] for one in (done["stop_report"], *done["more"])] == ["completed"] * 2
    assert (tmp_path / "jobs/night" / rank_files.STOP_REQUEST_FILE).exists()
    assert not done["changed"]


def test_another_attempt_ends_what_ran_under_any_name_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second attempt has worker-0 and worker-1 here, and worker-2 elsewhere.
    for index, machine in enumerate((HERE, HERE, HERE, ELSEWHERE)):
        running = records.RUNNING if index > 1 else records.STOPPED
        rank(tmp_path, f"worker-{index}", f"10.0.0.{index}", machine, phase=running)
    machines = {"a": HERE, "b": HERE, "c": ELSEWHERE}
    manifest = {
        "hosts": {name: {"machine": machine} for name, machine in machines.items()},
        "ranks": [{"host": name, "task": f"worker-{n}"} for n, name in enumerate(machines)],
    }
    stopped: list[str] = []

    def stop(folder: str, *_: Any) -> dict[str, list[int]]:
        stopped.append(Path(folder).name)
        return {"remaining": []}

    monkeypatch.setattr(ranks, "stop", stop)
    job_dir = tmp_path / "jobs/night"
    staging.end_earlier(str(job_dir), str(job_dir / "worker-0"), "a", manifest)
    assert sorted(stopped) == ["worker-0", "worker-2"]
    assert (job_dir / "worker-0/attempts/1/rank.json").exists()
    assert not (job_dir / "worker-1/attempts").exists()
