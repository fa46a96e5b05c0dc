"""Each rank's GPUs: looked at on the host, shared out in the plan, set for the script.

``nvidia-smi`` is a stand-in, no GPU is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, environment, write_local_inventory
from train.gang.plan import gpus as sharing
from train.gang.plan import ranks
from train.host import gpus as looking

UUIDS = [f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "abcdef"]
MIG = [f"MIG-{digit * 8}-0000-5000-8000-000000000000" for digit in "12"]


# ---------------------------------------------------------------------------------- the look


class Machine:
    """A machine whose driver and nvidia-smi are files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.dev, self.bin, self.calls = folder / "dev", folder / "bin", folder / "calls"
        self.listed = folder / "listed"
        for path in (self.dev, self.bin):
            path.mkdir(parents=True)
        self.listed.touch()

    def has(self, count: int, *, code: int = 0, said: str = "", instances: int = 0) -> None:
        """Give it GPUs, the first one with MIG instances; or an nvidia-smi that fails."""
        lines = [f"GPU {i}: NVIDIA A100 (40GB) (UUID: {UUIDS[i]})" for i in range(count)]
        lines[1:1] = [f"  MIG 3g.20gb     Device  {i}: (UUID: {MIG[i]})" for i in range(instances)]
        for index in range(count):
            (self.dev / f"nvidia{index}").touch()
        program = self.bin / "nvidia-smi"
        text = said or "\n".join(lines)
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{self.calls}\n'
            f"case $1 in --query*) cat {self.listed}; exit;; esac\n"
            f"cat <<'.'\n{text}\n.\nexit {code}"
        )
        program.chmod(0o755)

    def runs(self, *found: str) -> None:
        """Have processes on its GPUs: lines such as ``GPU-..., 4711, 512, python3``."""
        self.listed.write_text("".join(f"{line}\n" for line in found))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "machine")
    monkeypatch.setattr(looking, "DEV", str(made.dev))
    monkeypatch.setattr(looking, "PROC", str(tmp_path / "no-proc"))
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


def test_the_gpus_of_a_machine_are_listed_in_one_call(machine: Machine) -> None:
    machine.has(2, instances=2)
    assert looking.look() == [
        {"index": 0, "uuid": UUIDS[0], "instances": MIG},
        {"index": 1, "uuid": UUIDS[1], "instances": []},
    ]
    assert machine.calls.read_text().split() == ["-L"], "it only lists"


def test_without_device_nodes_nothing_is_called(machine: Machine) -> None:
    machine.has(2)
    for node in machine.dev.iterdir():
        node.unlink()
    assert looking.look() == []
    assert not machine.calls.exists()


def test_a_driver_without_nvidia_smi_tells_no_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.dev / "nvidia0").touch()
    monkeypatch.setenv("PATH", str(machine.bin))
    assert looking.look() == []


def test_a_driver_that_does_not_answer_is_told(machine: Machine) -> None:
    machine.has(1, code=9, said="NVIDIA-SMI has failed because it couldn't communicate")
    with pytest.raises(looking.GpuError, match="nvidia-smi fails: NVIDIA-SMI has failed because"):
        looking.look()


# ---------------------------------------------------------------------------------- the plan


def gang(
    groups: dict[str, list[str]],
    wanted: dict[str, Any],
    count: int = 4,
    machines: dict[str, str] | None = None,
    instances: int = 0,
    busy: dict[str, dict[str, Any]] | None = None,
) -> dict[str, tuple[str, ...] | None]:
    """Return the GPUs by inventory host; what is not in ``machines`` is on one machine."""
    names = [name for members in groups.values() for name in members]
    listed = [
        {"index": i, "uuid": UUIDS[i], "instances": [] if i else MIG[:instances]}
        for i in range(count)
    ]
    hosts = {
        name: {
            "machine": (machines or {}).get(name, "M"),
            "address": "10.0.0.1",
            "port": 12345 + number,
            "tensorflow": "2.21.0",
            "gpus": listed,
            "gpus_wanted": wanted.get(name, "auto"),
            "gpus_busy": busy or {},
        }
        for number, name in enumerate(names)
    }
    return {rank.host: rank.gpus for rank in sharing.share(ranks.plan_ranks(groups, hosts), hosts)}


def test_ranks_of_one_machine_share_its_gpus_evenly() -> None:
    workers = {"worker": ["a", "b"]}
    assert gang(workers, {}) == {"a": ("0", "1"), "b": ("2", "3")}
    assert gang(workers, {}, count=5) == {"a": ("0", "1"), "b": ("2", "3")}, "even shares"
    assert gang(workers, {}, machines={"b": "N"}, count=2) == {"a": ("0", "1"), "b": ("0", "1")}
    assert gang({"worker": ["b"], "chief": ["a"]}, {}, count=2) == {"a": ("0",), "b": ("1",)}


def test_only_ranks_that_train_share() -> None:
    groups = {"chief": ["c"], "worker": ["w"], "ps": ["p"], "evaluator": ["e"]}
    assert gang(groups, {}, count=2) == {"c": ("0",), "w": ("1",), "p": (), "e": ()}
    named = gang(groups, {"e": [0], "c": "none"}, count=3)
    assert named == {"c": (), "w": ("1", "2"), "p": (), "e": ("0",)}


def test_what_ranks_name_is_theirs() -> None:
    workers = {"worker": ["a", "b", "c"]}
    assert gang(workers, {"b": [1]}) == {"a": ("0",), "b": ("1",), "c": ("2",)}
    assert gang(workers, {"b": ["3", 0]}) == {"a": ("1",), "b": ("3", "0"), "c": ("2",)}
    # One list is all indices or all UUIDs for CUDA.
    assert gang(workers, {"b": [UUIDS[3], 0]})["b"] == (UUIDS[3], UUIDS[0])
    assert gang(workers, {"a": [], "b": "none"}) == {"a": (), "b": (), "c": ("0", "1", "2", "3")}


def test_a_rank_that_is_left_alone_takes_no_part() -> None:
    assert gang({"worker": ["a", "b"]}, {"b": None}, count=1) == {"a": ("0",), "b": None}


def test_without_gpus_nothing_is_set() -> None:
    assert gang({"worker": ["a", "b"]}, {"b": "none"}, count=0) == {"a": None, "b": None}


def test_instances_of_one_gpu_can_be_shared_by_name() -> None:
    workers = {"worker": ["a", "b", "c"]}
    found = gang(workers, {"a": [MIG[0]], "b": [MIG[1]]}, count=2, instances=2)
    assert found == {"a": (MIG[0],), "b": (MIG[1],), "c": ("1",)}


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"b": [4]},
        4,
        "train_job_gpus of b names GPU 4, which does not exist: its machine has 4 GPUs",
    ),
    ({"b": [4]}, 4, "4 GPUs, 0, 1, 2, 3 (nvidia-smi -L lists"),
    ({"a": ["GPU-x"]}, 1, "of a names GPU GPU-x, which does not exist: its machine has 1 GPU, 0 ("),
    ({"a": [0]}, 0, "of a names GPU 0, which does not exist: its machine has 0 GPUs (nvidia"),
    (
        {"a": [0, 1], "b": [1]},
        4,
        "a and b, ranks of one machine, both name GPU 1: a GPU belongs to",
    ),
    ({"a": [0], "b": [UUIDS[0]]}, 4, "a and b, ranks of one machine, both name GPU 0"),
    ({"a": [2, "2"]}, 4, "a names GPU 2 twice"),
    ({"a": [0], "b": [MIG[1]]}, 1, f"a names GPU 0, b names {MIG[1]} of GPU 0, a part of"),
    (
        {},
        1,
        "a, b: 2 ranks of one machine want a GPU, and it has 1 GPU: set train_job_gpus to none",
    ),
    (
        {"c": [1, 2]},
        3,
        "a, b: 2 ranks of one machine want a GPU, and it has 3 GPUs, of which other",
    ),
    ({"a": [0, 1]}, 2, "b wants a GPU, and other ranks name all of its machine, 2 GPUs: set its"),
    ({"a": "0,1"}, 4, "train_job_gpus of a is '0,1': it takes auto, none, or a list of indices or"),
    ({"a": [True]}, 4, "train_job_gpus of a is [True]"),
    ({"a": 1}, 4, "train_job_gpus of a is 1: it takes"),
]


@pytest.mark.parametrize(("wanted", "count", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_gpus_that_cannot_be_given(wanted: dict[str, Any], count: int, message: str) -> None:
    groups = {"worker": ["a", "b"], "evaluator": ["c"]}
    with pytest.raises(ranks.PlanError) as raised:
        gang(groups, wanted, count, instances=2 if count else 0)
    assert message in str(raised.value)


# ---------------------------------------------------------------------------------- a job

SCRIPT = """\
import os
print("SEES", *(os.environ.get(f"{n}", "-") for n in (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH")))
"""


class Copy:
    """A copy of the repository whose look at the driver goes to a folder instead of /dev."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.root, self.runs, self.hosts = folder / "copy", folder / "runs", folder / "hosts"
        for name in ("playbooks", "roles/train_job", "train", "ansible.cfg"):
            source, target = REPOSITORY / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        module = self.root / "train/host/gpus.py"
        text = module.read_text()
        assert 'DEV = "/dev"\n' in text
        module.write_text(text.replace('DEV = "/dev"\n', f"DEV = {str(machine.dev)!r}\n"))
        self.script = folder / "script/main.py"
        self.script.parent.mkdir()
        self.script.write_text(SCRIPT)
        self.inventory = write_local_inventory(folder / "inventory", {"worker": 2})
        (self.inventory / "group_vars/all/train_job.yml").unlink()  # auto, as elsewhere

    def run(self, job: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run ``python -m train run`` of the copy."""
        given = {
            "train_job_root": str(self.hosts),
            "train_job_python": sys.executable,
            "train_job_runs_dir": str(self.runs),
            **variables,
        }
        words = ["run", "--json", "-i", str(self.inventory), "-e", json.dumps(given)]
        return subprocess.run(
            [sys.executable, "-m", "train", *words, "--job", job, "--script", str(self.script)],
            cwd=self.root,
            env={**environment(), "ANSIBLE_CONFIG": str(self.root / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def seen(self, job: str) -> list[str]:
        """Return what each rank found in its environment."""
        logs = sorted((self.runs / job / "logs").glob("*.log"))
        return [log.read_text().partition("SEES ")[2].strip() for log in logs]


def test_a_job_gives_each_rank_its_gpus(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.delenv(name, raising=False)
    copy = Copy(tmp_path, machine)

    machine.has(4)
    done = copy.run("shared")
    assert done.returncode == 0, done.stdout + done.stderr
    assert copy.seen("shared") == ["0,1 PCI_BUS_ID true", "2,3 PCI_BUS_ID true"]
    manifest = json.loads((copy.runs / "shared/manifest.json").read_text())
    assert [rank["gpus"] for rank in manifest["ranks"]] == [["0", "1"], ["2", "3"]]
    assert [gpu["uuid"] for gpu in manifest["hosts"]["worker1"]["gpus"]] == UUIDS[:4]

    hosts = copy.inventory / "host_vars"
    hosts.mkdir()
    (hosts / "worker0.yml").write_text(f"train_job_gpus: ['{UUIDS[2]}']\n")
    (hosts / "worker1.yml").write_text("train_job_gpus: none\n")
    done = copy.run("named", train_job_environment={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert copy.seen("named") == [f"{UUIDS[2]} PCI_BUS_ID false", "-1 PCI_BUS_ID false"]

    machine.has(1)
    for path in (*hosts.iterdir(), machine.dev / "nvidia1"):
        path.unlink()
    done = copy.run("few")
    assert done.returncode == 2, done.stdout
    assert "worker0, worker1: 2 ranks of one machine want a GPU, and it has 1 GPU" in done.stdout
    by_hand = copy.run("hand", train_job_environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert by_hand.returncode == 0, by_hand.stdout + by_hand.stderr
    assert copy.seen("hand") == ["0 - -"] * 2

    machine.has(1, code=9, said="NVIDIA-SMI has failed")
    assert copy.run("broken").returncode == 0
    assert copy.seen("broken") == ["- - -"] * 2
