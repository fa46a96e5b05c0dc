"""Gangs that lose a host for good: fewer workers, a spare host, the copy of the checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab
from tests.support.testbed import Host, Rank, Testbed
from tests.support.testbed.engine import docker
from tests.support.training_script import result_of

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Steps of some 50 ms, in which losses are told that rounding changes little.
ARGUMENTS = [
    *("--data", "synthetic", "--model", "mnist-cnn", "--batch-size", "96", "--epochs", "2"),
    *("--learning-rate", "0.005", "--checkpoint-every", "10", "--summary-every", "5"),
]
READ = """
import json, pathlib, sys
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = {}
for path in pathlib.Path(sys.argv[1]).rglob("events*"):
    events = EventAccumulator(str(path), size_guidance={"tensors": 0})
    events.Reload()
    if "train/loss" in events.Tags()["tensors"]:
        for event in events.Tensors("train/loss"):
            found[event.step] = float(tf.make_ndarray(event.tensor_proto))
print("RESULT" + json.dumps(found))
"""


def losses(python: str, run_dir: Path) -> dict[int, float]:
    """Return the loss by step, from TensorBoard's events of the last chief."""
    told = result_of(python, READ, str(run_dir / "tensorboard"), project=False)
    return {int(step): loss for step, loss in told.items()}


@contextmanager
def away(host: Host) -> Iterator[None]:
    """Take a host away, and bring it back for the tests that follow."""
    docker("kill", host.container)
    try:
        yield
    finally:
        docker("start", host.container)


@pytest.fixture(scope="module")
def labs(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Lab]:
    folder = tmp_path_factory.mktemp("elastic")

    def make(name: str, spare: bool = False) -> Lab:
        hosts = testbed.hosts
        variables: dict[str, object] = {"train_job_port": 21000}
        ranks = {"worker": [Rank(f"w{n}", hosts[n], variables) for n in range(3)]}
        if spare:
            ranks["spare"] = [Rank("s0", hosts[3], variables)]
        inventory = testbed.write_inventory(ranks, path=folder / name)
        policy: dict[str, Any] = {"train_job_min_workers": 2, "train_job_host_wait": 0}
        return Lab(inventory, folder / "runs", policy)

    return make


@pytest.fixture(scope="module")
def calm(labs: Callable[..., Lab], tf_python: str) -> dict[int, float]:
    """The losses of an undisturbed run of three workers."""
    lab = labs("calm")
    run = lab.run("--job", "calm", arguments=ARGUMENTS)
    assert run.code == 0, run.error
    return losses(tf_python, lab.runs_dir / "calm")


@pytest.mark.parametrize(
    ("name", "lost", "hosts"),
    [
        ("smaller", 1, ["w0", "w2"]),
        ("spare", 1, ["w0", "w2", "s0"]),
        ("chief", 0, ["w1", "w2"]),
    ],
)
def test_a_host_is_lost_for_good(
    labs: Callable[..., Lab],
    testbed: Testbed,
    calm: dict[int, float],
    tf_python: str,
    name: str,
    lost: int,
    hosts: list[str],
) -> None:
    lab = labs(name, spare=name == "spare")
    command = lab.start("--job", name, arguments=ARGUMENTS)
    command.wait_for(lambda e: e["event"] == "rank" and (e["progress"].get("step") or 0) > 30)
    with away(testbed.hosts[lost]):
        run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    (told,) = [event for event in run.events if event["event"] == "restart"]
    assert (told["root_cause"], told["cause"]) == (f"worker-{lost}", "unreachable")
    result = lab.saved(name)
    assert [rank["host"] for rank in result["ranks"]] == hosts
    assert [rank["task"] for rank in result["ranks"]] == [f"worker-{n}" for n in range(len(hosts))]
    assert len({rank["weights_sha256"] for rank in result["ranks"]}) == 1
    log = (lab.runs_dir / name / "logs/worker-0.log").read_text()
    assert "resumed at step" in log
    found = losses(tf_python, lab.runs_dir / name)
    common = sorted(set(found) & set(calm))
    assert len(common) > 10
    for step in common:
        assert found[step] == pytest.approx(calm[step], rel=1e-5), step
    manifest = json.loads((lab.runs_dir / name / "manifest.json").read_text())
    assert list(manifest["attempts"][1]["left_out"]) == [f"w{lost}"]
