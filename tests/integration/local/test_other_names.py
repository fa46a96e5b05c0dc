"""A job that is looked up under inventories with other names for its machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from tests.support.jobs import job_processes, plain, train, training
from tests.support.lab import Command, Lab, Labs, free_port


def under(lab: Lab, *names: str, runs_dir: Path | None = None) -> Lab:
    """Return a lab with other names for the same machine."""
    folder = lab.inventory.with_name("-".join(names))
    shutil.copytree(lab.inventory / "group_vars", folder / "group_vars")
    hosts = {name: {"train_job_port": free_port()} for name in names}
    (folder / "hosts.yml").write_text(json.dumps({"worker": {"hosts": hosts}}))
    return replace(lab, inventory=folder, runs_dir=runs_dir or lab.runs_dir)


def rows(lab: Lab, job: str) -> list[tuple[str, str, str]]:
    """Return task, host and phase of each rank from ``status``."""
    done = train(*lab.words("status", "--json", job))
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    return [(rank["task"], rank["host"], rank["phase"]) for rank in ranks]


def test_a_job_is_known_by_its_machine_under_any_names(local_lab: Labs, tmp_path: Path) -> None:
    first, job = local_lab(), "named"
    begun = plain(first, job, "--steps 2000", "--on-interrupt", "leave")
    begun.wait_for(training)
    begun.process.terminate()
    begun.end()

    other = under(first, "lab-b", "lab-a")
    assert rows(other, job) == [("worker-0", "lab-b", "running"), ("worker-1", "lab-a", "running")]
    # One name represents two ranks.
    single = under(first, "alone", runs_dir=tmp_path / "single")
    attached = Command(*single.words("attach", "--json", job))
    attached.wait_for(training)
    stopped = train(*single.words("stop", job))
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.count("alone: running -> stopped, ") == 2
    ended = attached.end()
    assert (ended.code, ended.result["state"]) == (3, "stopped")
    assert [rank["host"] for rank in ended.result["ranks"]] == ["alone", "alone"]
    assert job_processes(first.root) == []
