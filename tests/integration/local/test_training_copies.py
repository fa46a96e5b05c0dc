"""Checkpoints of ranks other than the chief: copies, lost hosts, old folders, later attempts."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import (
    Rank,
    Start,
    about_checkpoint,
    kill,
    run_gang,
    saved_steps,
    start_gang,
)
from tests.support.training_script import inside, modules, replicas_of_cpu, tf

cluster, gang = modules("training.cluster", "training.gang")
pytestmark = pytest.mark.tensorflow

#: 88 steps.
OPTIONS = (
    "--epochs=8",
    "--checkpoint-every=10",
    "--steps-per-execution=5",
    "--evaluate-every=4",
    "--model=linear",
    "--learning-rate=0.02",
    "--export=none",
)
LAST = [70, 80, 88]
COPY = {1: {"TRAIN_CHECKPOINT_COPY": "1"}}


@pytest.fixture(scope="module")
def whole(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """Return the ranks of a run with a copy that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return run_gang(start, folder, *OPTIONS, variables=COPY)


def test_a_copy_has_the_bytes_of_the_chiefs_checkpoints(whole: list[Rank]) -> None:
    chief, copy = (rank.folder / "checkpoints" for rank in whole)
    names = [f"ckpt-{step}.npz" for step in LAST]
    for folder in (chief, copy):
        assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert (chief / name).read_bytes() == (copy / name).read_bytes()
    assert not any("retracing" in rank.said() for rank in whole)


def test_the_loss_of_the_chiefs_folder_is_survived(
    start: Start, tmp_path: Path, whole: list[Rank]
) -> None:
    chief, copy = tmp_path / "0/checkpoints", tmp_path / "1/checkpoints"
    shutil.copytree(whole[1].folder / "checkpoints", copy)
    (copy / "ckpt-88.npz").unlink()
    # The replacement was away before: it has an old checkpoint, and one that is not a file.
    chief.mkdir(parents=True)
    shutil.copy(copy / "ckpt-70.npz", chief)
    (chief / "ckpt-900.npz").mkdir()

    again = run_gang(start, tmp_path, *OPTIONS, variables=COPY)
    for index, rank in enumerate(again):
        line = f"worker-{index}: resumed at step 80, from the checkpoint of worker-1\n"
        assert line in rank.said()
        assert rank.weights() == whole[0].weights()
    assert "warning: ignoring checkpoints/ckpt-900.npz: " in again[0].said()
    assert "warning: " not in again[1].said()
    assert "retracing" not in again[1].said()
    assert saved_steps(copy) == LAST
    # The checkpoint that the chief lacked was copied at once.
    assert (chief / "ckpt-80.npz").read_bytes() == (copy / "ckpt-80.npz").read_bytes()


def test_a_folder_that_the_ranks_share_is_read_and_written_by_the_chief(
    start: Start, tmp_path: Path, whole: list[Rank]
) -> None:
    folder = tmp_path / "shared"
    shutil.copytree(whole[0].folder / "checkpoints", folder)
    newest = folder / "ckpt-88.npz"
    os.truncate(newest, newest.stat().st_size // 2)

    again = run_gang(start, tmp_path, *OPTIONS, "--checkpoint-dir=../shared", variables=COPY)
    for index, rank in enumerate(again):
        assert "warning: ignoring ../shared/ckpt-88.npz: " in rank.said()
        assert f"worker-{index}: resumed at step 80\n" in rank.said()
        assert rank.weights() == whole[0].weights()
    assert "because the checkpoint folder is shared with the chief\n" in again[1].said()
    assert sorted(path.name for path in folder.iterdir()) == [f"ckpt-{step}.npz" for step in LAST]


@pytest.mark.soak
def test_a_run_that_began_anew_counts_more_than_a_higher_step(
    start: Start, tmp_path: Path, whole: list[Rank]
) -> None:
    """Worker 1 kept a copy of a run that was given up, and none of the next run."""
    chief, stale = tmp_path / "0/checkpoints", tmp_path / "1/checkpoints"
    for folder in (chief, stale):
        shutil.copytree(whole[0].folder / "checkpoints", folder)
    run_gang(start, tmp_path, *OPTIONS, "--resume=never", "--epochs=2")
    assert saved_steps(stale) == LAST
    began = about_checkpoint(chief / "ckpt-22.npz")["anew_at"]
    assert 0 < began <= time.time()

    again = run_gang(start, tmp_path, *OPTIONS, variables=COPY)
    assert "worker-1: resumed at step 22\n" in again[1].said()
    assert again[0].weights() == whole[0].weights()
    for folder in (chief, stale):
        assert [about_checkpoint(path)["anew_at"] for path in folder.glob("ckpt-*")] == [began] * 3
        assert saved_steps(next(folder.glob("replaced-*"))) == LAST, (
            "another run's are never removed"
        )


def test_a_later_attempt_goes_on_only_with_what_the_first_began_anew(
    start: Start, tmp_path: Path, whole: list[Rank]
) -> None:
    chief, copy = tmp_path / "0/checkpoints", tmp_path / "1/checkpoints"
    for folder in (chief, copy):
        shutil.copytree(whole[0].folder / "checkpoints", folder)

    def attempt(number: int, run: Callable[..., list[Rank]], *more: str) -> list[Rank]:
        common = {"TRAIN_JOB": "ours", "TRAIN_ATTEMPT": str(number)}
        own = {0: common, 1: {**common, **COPY[1]}}
        return run(start, tmp_path, *OPTIONS, "--resume=never", *more, variables=own)

    # Killed before it has saved a checkpoint, so the existing ones are from the previous run.
    ranks = attempt(1, start_gang)
    ranks[0].wait_for("starting")
    kill(ranks)
    assert saved_steps(chief) == saved_steps(copy) == LAST

    attempt(2, run_gang, "--epochs=3")
    assert about_checkpoint(copy / "ckpt-33.npz")["job"] == "ours"
    shutil.rmtree(chief)
    shutil.copytree(whole[0].folder / "checkpoints", chief)

    ranks = attempt(3, run_gang)
    assert "worker-0: resumed at step 33, from the checkpoint of" in ranks[0].said()
    assert [rank.weights() for rank in ranks] == [whole[0].weights()] * 2
    assert saved_steps(chief) == saved_steps(copy) == LAST


def test_a_folder_that_another_run_writes_into_is_refused(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "unfinished-1").touch()
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # like the chief of the other run
    try:
        options = ("--epochs=1", "--export=none", f"--checkpoint-dir={folder}", "--resume=never")
        ranks = start_gang(start, tmp_path, *options)
        assert [rank.end() for rank in ranks] == [2, 2], [rank.said() for rank in ranks]
    finally:
        os.close(descriptor)
    for rank in ranks:
        assert (
            f"worker-0 cannot start: another process is writing checkpoints to {folder}: wait "
            in (rank.said())
        )
    assert [path.name for path in folder.iterdir()] == ["unfinished-1"]


def test_required_is_for_the_first_attempt_and_a_wrong_attempt_is_told(
    start: Start, tmp_path: Path
) -> None:
    options = ("--epochs=1", "--export=none", "--resume=required")
    later = start(tmp_path / "later", *options, variables={"TRAIN_ATTEMPT": "2"})
    first = start(tmp_path / "first", *options)
    wrong = [
        start(tmp_path / name, *options, variables={name: "no"})
        for name in ("TRAIN_ATTEMPT", "TRAIN_CHECKPOINT_COPY")
    ]
    assert [rank.end() for rank in (later, first, *wrong)] == [0, 2, 2, 2], later.said()
    assert (
        "worker.py: error: worker-0 cannot start: --resume required, but there is no "
        f"intact checkpoint in {first.folder}/checkpoints\n"
    ) in first.said()
    for rank, told in zip(
        wrong, ("'no' is not a whole number from 1 to 1000000", "'no' is not 0 or 1"), strict=True
    ):
        name = rank.folder.name
        assert rank.said() == f"worker.py: error: environment variable {name}: {told}\n"


def test_other_options_of_any_rank_are_refused_but_where_they_are_no_matter(
    start: Start, tmp_path: Path, whole: list[Rank]
) -> None:
    folder = tmp_path / "1/checkpoints"
    shutil.copytree(whole[0].folder / "checkpoints", folder)
    options = (*OPTIONS, "--seed=1", "--epochs=1")
    reason = "checkpoints/ckpt-88.npz was written with --seed 0, not 1: "
    for variables in ({}, {1: {**COPY[1], "TRAIN_ATTEMPT": "2"}}):
        ranks = start_gang(start, tmp_path, *options, variables=variables)
        assert [rank.end() for rank in ranks] == [2, 2], [rank.said() for rank in ranks]
        for rank in ranks:
            assert f"worker.py: error: worker-1 cannot start: {reason}" in rank.said()
    assert not any((tmp_path / "0/checkpoints").iterdir()), "the chief has locked it, no more"

    # For a later attempt, it is from another job, and this rank writes no checkpoints there.
    ranks = run_gang(start, tmp_path, *options, variables={1: {"TRAIN_ATTEMPT": "2"}})
    assert f"warning: ignoring checkpoints/ckpt-88.npz: {reason}" in ranks[1].said()
    assert saved_steps(folder) == LAST


@inside
def test_the_first_replica_of_the_chosen_rank_gives_the_values() -> None:
    strategy = replicas_of_cpu(4)
    # Two ranks of two replicas each, simulated in one process.
    workers = cluster.Cluster({"worker": ["a:1", "b:1"]}, "worker", 1)
    ranks = gang.Collective(strategy, workers)
    values: dict[str, list[Any]] = {
        "float32": [1.5, -0.0, 3.25, 4.0],
        "float16": [0.5, 1.0, -0.0, 2.0],
        "int64": [1, 2, -(2**40), 4],
        "bool": [False, False, True, False],
    }
    for kind, own in values.items():
        for source in (0, 1):
            with strategy.scope():
                variable = tf.Variable(tf.zeros([3], kind))
            parts = strategy.experimental_local_results(variable)
            for part, value in zip(parts, own, strict=True):
                part.assign(tf.fill([3], tf.constant(value, kind)))
            ranks.share([variable], source)
            # As text, because -0.0 then differs from 0.0.
            expected = str([own[2 * source]] * 3)
            assert [str(part.numpy().tolist()) for part in parts] == [expected] * 4
    assert ranks.gather([7, -1]).tolist() == [[7, -1], [7, -1]]
    assert (ranks.from_rank("what", 1), ranks.from_rank("what", 0)) == ("what", "")
