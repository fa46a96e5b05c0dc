"""A job that is looked up under inventories with other names for the same SSH hosts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.jobs import ssh_processes, train, training
from tests.support.lab import Command, Lab, free_port
from tests.support.testbed import Host, Rank, Testbed, running_testbed

pytestmark = pytest.mark.docker

#: Continues from its checkpoint until a file exists, and writes a model and a note.
SCRIPT = """
import json, os, pathlib, sys, time
checkpoint = pathlib.Path(os.environ["TRAIN_CHECKPOINT_DIR"], "step")
checkpoint.parent.mkdir(parents=True, exist_ok=True)
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("begins after step", step)
deadline = time.monotonic() + 1800
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    step += 1
    checkpoint.with_suffix(".new").write_text(str(step))
    checkpoint.with_suffix(".new").replace(checkpoint)
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        print(json.dumps({"phase": "training", "step": step}), file=stream)
    time.sleep(0.2)
model = pathlib.Path(os.environ["TRAIN_MODEL_DIR"])
model.mkdir(parents=True, exist_ok=True)
(model / "weights").write_text(os.environ["TRAIN_RANK_DIR"])
pathlib.Path("note.txt").write_text(os.environ["TRAIN_RANK_DIR"])
"""
JOB = "named"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Testbed]:
    with running_testbed(2, tmp_path / "bed") as made:
        yield made


def lab_of(bed: Testbed, folder: Path, **names: Host) -> Lab:
    """Return a lab whose inventory has these names for hosts of the test bed, in that order."""
    ranks = [
        Rank(name.replace("_", "."), host, {"train_job_port": free_port()})
        for name, host in names.items()
    ]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    given = {
        "train_job_python": "/usr/bin/python3",
        "train_job_max_restarts": 0,
        "train_job_collect": ["note.txt"],
    }
    return Lab(inventory, folder / "runs", given, doubtful=True)


@pytest.mark.soak
def test_every_command_finds_a_job_by_its_machines(bed: Testbed, tmp_path: Path) -> None:
    one, two = bed.hosts
    # Two ranks share a machine. The second inventory begins with another machine, the third has
    # fewer names than there are ranks.
    first = lab_of(bed, tmp_path / "first", **{"10_0_0_1": one, "10_0_0_2": one, "10_0_0_3": two})
    second = lab_of(bed, tmp_path / "second", lab_2=two, lab_0=one, lab_1=one)
    third = lab_of(bed, tmp_path / "third", big=one, small=two)
    script, end = tmp_path / "script/main.py", f"/tmp/{free_port()}"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    begun = first.start("--job", JOB, "--script", str(script), arguments=[end])
    begun.wait_for(training)
    begun.process.send_signal(signal.SIGINT)  # without a terminal, it leaves the job running
    assert begun.end().code == 130

    for lab, names in ((second, ["lab.0", "lab.1", "lab.2"]), (third, ["big", "big", "small"])):
        done = train(*lab.words("status", "--json", JOB))
        assert done.returncode == 0, done.stderr
        ranks = json.loads(done.stdout)["ranks"]
        assert [rank["host"] for rank in ranks] == names
        assert [rank["task"] for rank in ranks] == ["worker-0", "worker-1", "worker-2"]
        assert {rank["phase"] for rank in ranks} == {"running"}
    logs = train(*third.words("logs", JOB))
    assert logs.stdout.count("begins after step 0") == 3, logs.stdout + logs.stderr

    attached = Command(*second.words("attach", "--json", JOB), doubtful=True)
    attached.wait_for(training)
    stopped = train(*third.words("stop", JOB))
    assert stopped.returncode == 0, stopped.stderr
    assert [line.partition(" -> ")[0] for line in stopped.stdout.splitlines()] == [
        "big: running",
        "big: running",
        "small: running",
    ]
    left = attached.end()
    assert (left.code, left.result["state"]) == (3, "stopped"), left.error
    assert [rank["host"] for rank in left.result["ranks"]] == ["lab.0", "lab.1", "lab.2"]
    assert ssh_processes(bed) == []

    # In the folder of the first attempt. The rank with the newest checkpoint stays the chief,
    # although its name now comes later.
    same = replace(second, runs_dir=first.runs_dir)
    restarted = Command(*same.words("restart", "--json", JOB), doubtful=True)
    restarted.wait_for(training)
    for host in bed.hosts:
        bed.exec(host, "touch", end)
    ended = restarted.end()
    assert ended.code == 0, ended.error
    assert [rank["host"] for rank in ended.result["ranks"]] == ["lab.0", "lab.1", "lab.2"]
    log = (same.runs_dir / JOB / "logs/worker-0.log").read_text()
    assert "begins after step " in log
    assert "begins after step 0\n" not in log

    fetched = train(*third.words("attach", JOB))
    assert fetched.returncode == 0, fetched.stderr
    for lab in (same, third):
        run_dir = lab.runs_dir / JOB
        assert (run_dir / "model/weights").read_text().endswith("/worker-0")
        for task in ("worker-0", "worker-1", "worker-2"):
            assert (run_dir / "collected" / task / "note.txt").read_text().endswith(f"/{task}")

    kept = train(*third.words("clean", "--keep", "0"))
    assert "ended" in kept.stdout, kept.stdout + kept.stderr
    assert "jobs are kept for 10 minutes" in kept.stdout
