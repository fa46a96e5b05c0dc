"""Options that change how a training computes must not change its results."""

from __future__ import annotations

import itertools
import math
import shutil
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import (
    Rank,
    Start,
    kill,
    patched,
    run_gang,
    start_gang,
)
from tests.support.training_script import call, inside, modules, np, scalars, tf

checkpoints, models, order = modules("training.checkpoints", "training.models", "training.order")
objective, settings = modules("training.objective", "training.settings")
step, step_runner = modules("training.step", "training.step_runner")
[task] = modules("training.task")
pytestmark = pytest.mark.tensorflow

#: An epoch of the digits has 11 steps of 120 examples.
PER_EPOCH = 11


def run_all(
    start: Start, folder: Path, runs: dict[str, list[str]], script: str = ""
) -> dict[str, Rank]:
    """Run the program once for each list of options."""
    ranks = {name: start(folder / name, *options, script=script) for name, options in runs.items()}
    for rank in ranks.values():
        assert rank.end() == 0, rank.said()
    return ranks


EPOCHS = 4
COSINE = (
    f"--epochs={EPOCHS}",
    "--summary-every=1",
    "--export=none",
    "--dropout=0.2",
    "--schedule=cosine",
    "--warmup-steps=7",
    "--learning-rate=0.05",
    "--base-batch-size=60",
)
SHARED = ("--devices=cpu:0,cpu:1", "--accumulate=4")


def test_devices_and_parts_of_a_batch_change_no_number(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    ranks = run_all(start, tmp_path, {"alone": [*COSINE], "shared": [*COSINE, *SHARED]})
    for rank, replicas in zip(ranks.values(), (1, 2), strict=True):
        assert f"replicas {replicas}," in rank.said()
    alone, shared = scalars(tf_python, *ranks.values())
    assert len(alone["train/loss"]) == EPOCHS * PER_EPOCH
    last, of_shared = (rank.records()[-1]["metrics"] for rank in ranks.values())
    assert last["test_accuracy"] > 0.85
    assert of_shared == pytest.approx(last, abs=1e-5)
    for tag in ("train/loss", "train/accuracy"):
        assert shared[tag] == pytest.approx(alone[tag], abs=1e-5)


def test_events_are_means_over_the_steps_between_them(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    # With any number of steps in a call, and across a restart.
    common = ["--summary-every=5", "--export=none", "--learning-rate=0.02"]
    runs = {"each": ["--steps-per-execution=1", "--epochs=2"], "many": ["--epochs=1"]}
    ranks = run_all(start, tmp_path, {name: [*common, *more] for name, more in runs.items()})
    ranks |= run_all(start, tmp_path, {"many": [*common, "--epochs=2"]})
    assert "resumed at step 11" in ranks["many"].said()
    each, many = (of["train/loss"] for of in scalars(tf_python, *ranks.values()))
    assert sorted(each) == [5, 10, 15, 20]
    assert many == each


OTHERS = {
    "xla": ["--xla", "--optimizer=adam", "--learning-rate=0.005"],
    "bfloat16": ["--precision=bfloat16", "--weight-decay=1e-4"],
    "deterministic": [
        "--deterministic",
        "--summary-every=1",
        "--schedule=steps",
        "--milestones=22,30",
        "--decay=0.5",
        "--warmup-steps=3",
        "--base-batch-size=240",
    ],
    "float16": ["--precision=float16", "--checkpoint-every=22"],
}


@pytest.fixture(scope="module")
def others(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rank]:
    """Return the ranks of runs that compute in other ways."""
    runs = {name: ["--epochs=4", "--export=none", *more] for name, more in OTHERS.items()}
    return run_all(start, tmp_path_factory.mktemp("others"), runs)


@pytest.mark.parametrize("way", OTHERS)
def test_each_way_to_compute_learns(others: dict[str, Rank], way: str) -> None:
    last = others[way].records()[-1]
    assert last["loss"] < 0.7
    assert last["metrics"]["test_accuracy"] > 0.85
    assert last["metrics"]["test_loss"] < 0.5


def test_a_deterministic_run_has_the_rate_of_milestones_and_no_times(
    others: dict[str, Rank], tf_python: str
) -> None:
    rates = scalars(tf_python, others["deterministic"])[0]["train/learning_rate"]
    expected = {1: 0.05 / 3, 2: 0.1 / 3}
    expected |= dict.fromkeys(range(3, 23), 0.05)
    expected |= dict.fromkeys(range(23, 31), 0.025) | dict.fromkeys(range(31, 45), 0.0125)
    assert rates == pytest.approx(expected, rel=1e-5)
    # The parts of a step's time are neither measured nor reported.
    assert not any("step_time" in record for record in others["deterministic"].records())


def check_float16(*paths: Path) -> None:
    """Check that checkpoints are equal, and that the loss was always scaled."""
    first, second = (checkpoints.read(path).arrays for path in paths)
    for name, array in first.items():
        assert np.array_equal(array, second[name]), name
    counter, scale = (float(first[name]) for name in sorted(first)[-2:])
    # Steps whose gradients were too large were skipped.
    assert 0 < counter <= 44
    assert 1 < scale <= 2**15


def test_resumed_float16_ends_with_the_same_bits(
    others: dict[str, Rank], start: Start, tf_python: str, tmp_path: Path
) -> None:
    shutil.copytree(others["float16"].folder / "checkpoints", tmp_path / "0/checkpoints")
    (tmp_path / "0/checkpoints/ckpt-44.npz").unlink()
    options = ["--epochs=4", "--export=none", *OTHERS["float16"]]
    [rank] = run_gang(start, tmp_path, *options, workers=1)
    assert "resumed at step 22" in rank.said()
    assert rank.weights() == others["float16"].weights()
    runs = (rank, others["float16"])
    call(tf_python, check_float16, *(run.folder / "checkpoints/ckpt-44.npz" for run in runs))


RESNET = (
    "--model=resnet20",
    "--data=synthetic",
    "--examples=120",
    "--batch-size=24",
    "--epochs=1",
    "--learning-rate=0.01",
    "--summary-every=1",
    "--export=none",
)
ALL_RECORDS = "worker.ProgressWriter.due = lambda self, phase: True"
#: A single BatchNorm tests the same as 19, and is traced faster.
SMALL = patched(f"""
import tensorflow as tf
from training import models

def resnet(depth, shape, classes, seed, sync_batch_norm, dropout):
    layers = tf.keras.layers
    kernels = {{"kernel_initializer": tf.keras.initializers.GlorotUniform(seed)}}
    return tf.keras.Sequential([
        tf.keras.Input(shape),
        layers.Conv2D(8, 3, strides=2, activation="relu", **kernels),
        layers.BatchNormalization(synchronized=sync_batch_norm),
        layers.GlobalAveragePooling2D(),
        layers.Dense(classes, **kernels),
    ])

models.resnet = resnet
{ALL_RECORDS}
""")


@pytest.fixture(scope="module")
def apart(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """Return two ranks whose BatchNorm computes means over its own share only."""
    options = (*RESNET, "--checkpoint-every=3")
    return run_gang(start, tmp_path_factory.mktemp("apart"), *options, script=SMALL)


def test_batch_norm_is_the_same_in_all_ranks_and_for_any_number_of_them(
    start: Start, tf_python: str, tmp_path: Path, apart: list[Rank]
) -> None:
    together = run_gang(start, tmp_path / "together", *RESNET, "--sync-batch-norm", script=SMALL)
    alone = start(tmp_path / "alone", *RESNET, script=SMALL)
    deep = start(tmp_path / "deep", *RESNET, "--examples=72", script=patched(ALL_RECORDS))
    assert [alone.end(), deep.end()] == [0, 0], [alone.said(), deep.said()]
    assert (
        alone.said().count("trained on synthetic data: the metrics say nothing about real data\n")
        == 1
    )
    # The hash includes the moving statistics.
    for gang in (apart, together):
        assert gang[0].weights() == gang[1].weights()
    check_times([*apart, alone, deep])
    [*_, parts] = [r["step_time"] for r in deep.records() if "step_time" in r]
    assert parts["compute_ms"] > 2 * parts["input_ms"], parts

    runs = [apart[0], together[0], alone, deep]
    losses = [tags["train/loss"] for tags in scalars(tf_python, *runs)]
    assert [len(of) for of in losses] == [5, 5, 5, 3]
    first = range(1, 4)  # rounding grows from step to step
    separate, shared, whole = ([of[step] for step in first] for of in losses[:3])
    assert shared == pytest.approx(whole, rel=1e-4)
    assert separate != pytest.approx(whole, rel=1e-4)
    assert all(math.isfinite(loss) for loss in losses[3].values())


def test_batch_norm_is_resumed_by_all_ranks(
    start: Start, tmp_path: Path, apart: list[Rank]
) -> None:
    """One rank reads the checkpoint with the moving statistics, and sends them to the other."""
    folder = tmp_path / "0/checkpoints"
    shutil.copytree(apart[0].folder / "checkpoints", folder)
    (folder / "ckpt-5.npz").unlink()
    again = run_gang(start, tmp_path, *RESNET, script=SMALL)
    assert "worker-0: resumed at step 3" in again[0].said()
    assert len({rank.weights() for rank in (*again, *apart)}) == 1


def moving_means(path: Path) -> list[float]:
    read = checkpoints.read(path)
    moving = [name for name, own in read.names.items() if "/moving_" in own]
    return [float(read.arrays[name].mean()) for name in moving]


@pytest.mark.soak
def test_parts_of_a_batch_change_batch_norm_as_replicas_do(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    devices = ",".join(f"cpu:{number}" for number in range(4))
    runs = {"parts": ["--accumulate=4"], "replicas": [f"--devices={devices}"]}
    options = {name: [*RESNET, *more] for name, more in runs.items()}
    ranks = run_all(start, tmp_path, options, script=SMALL)
    losses = [of["train/loss"] for of in scalars(tf_python, *ranks.values())]
    parts, replicas = ([of[step] for step in range(1, 5)] for of in losses)
    assert parts == pytest.approx(replicas, rel=1e-4)
    of_parts, of_replicas = (
        call(tf_python, moving_means, rank.folder / "checkpoints/ckpt-5.npz")
        for rank in ranks.values()
    )
    assert len(of_parts) == 2
    # With four updates per step instead of one, the statistics would move by more than half.
    assert of_parts == pytest.approx(of_replicas, rel=0.02, abs=1e-3)


PACKED = patched("from training import exchange\nexchange.PACK_BYTES = 2000")
SHORT = ("--epochs=3", "--export=none", "--learning-rate=0.05", "--checkpoint-every=20")
#: The precision of the exchange, and the number of workers.
EXCHANGES = {"float32": 2, "bfloat16": 2, "float16": 3}


@pytest.fixture(scope="module")
def exchanged(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Rank]]:
    """Return gangs that exchange gradients in packs, and one that exchanges float32 at once."""
    folder = tmp_path_factory.mktemp("exchanged")
    gangs = {"whole": start_gang(start, folder / "whole", *SHORT)}
    for precision, workers in EXCHANGES.items():
        options = (*SHORT, f"--exchange-precision={precision}")
        gangs[precision] = start_gang(
            start, folder / precision, *options, script=PACKED, workers=workers
        )
    for rank in itertools.chain(*gangs.values()):
        assert rank.end() == 0, rank.said()
    return gangs


@pytest.mark.parametrize("precision", EXCHANGES)
def test_packs_give_the_same_bits_and_fewer_bits_learn_the_same(
    exchanged: dict[str, list[Rank]], precision: str
) -> None:
    [weights] = {rank.weights() for rank in exchanged[precision]}
    whole = exchanged["whole"][0]
    assert (weights == whole.weights()) is (precision == "float32")
    loss = exchanged[precision][0].records()[-1]["loss"]
    assert loss == pytest.approx(whole.records()[-1]["loss"], rel=0.02)


@pytest.mark.soak
def test_fewer_bits_in_the_exchange_survive_a_kill_and_a_lost_worker(
    start: Start, tmp_path: Path, exchanged: dict[str, list[Rank]]
) -> None:
    options = [*SHORT, "--exchange-precision=bfloat16"]
    ranks = start_gang(start, tmp_path / "killed", *options, "--epochs=100000", script=PACKED)
    ranks[0].wait_for("training")
    kill(ranks, [1])
    assert all(rank.process.returncode for rank in ranks)

    whole = exchanged["bfloat16"][0]
    for name in ("again", "alone"):
        folder = tmp_path / name / "0/checkpoints"
        shutil.copytree(whole.folder / "checkpoints", folder)
        (folder / "ckpt-33.npz").unlink()
    again = run_gang(start, tmp_path / "again", *options, script=PACKED)
    # A single worker exchanges nothing, and computes the same as two did, in full precision.
    [alone] = run_gang(start, tmp_path / "alone", *options, workers=1)
    for rank in (again[0], alone):
        assert "worker-0: resumed at step 20" in rank.said()
    assert [rank.weights() for rank in again] == [whole.weights()] * 2
    assert alone.weights() != whole.weights()
    loss = whole.records()[-1]["loss"]
    assert alone.records()[-1]["loss"] == pytest.approx(loss, rel=0.02)


def check_times(ranks: list[Rank]) -> None:
    """Check that records of training contain the parts of a step's time, and memory."""
    for rank in ranks:
        training = [record for record in rank.records() if record["phase"] == "training"]
        assert len(training) >= 2
        for record in training:
            assert 100 < record["memory_mb"] < 10_000
        for record in training[1:]:
            parts = record["step_time"]
            assert sorted(parts) == ["compute_ms", "exchange_ms", "input_ms"]
            assert min(parts.values()) >= 0
            assert parts["compute_ms"] > 0
            each = 1000 * 24 / record["examples_per_s"]
            assert sum(parts.values()) == pytest.approx(each, rel=0.02)


def make_step(optimizer: Any, **options: Any) -> tuple[Any, Any]:
    """Return a small residual network, and a TrainStep of it."""
    model = models.resnet(8, (8, 8, 3), 10, 1, sync_batch_norm=False, dropout=0.0)
    optimizer.build(model.trainable_variables)
    given = settings.Settings(batch_size=8, **options)
    learnt = task.Task(given, None, objective.make_objective(given, 10, {}), (), None)
    return model, step.TrainStep(learnt, model, optimizer, shares=1)


@inside
def test_weight_decay_is_for_kernels_alone() -> None:
    model, train_step = make_step(tf.keras.optimizers.SGD(0.5), weight_decay=0.1)
    for variable in model.trainable_variables:  # not 0, because a decay would then have no effect
        variable.assign_add(tf.ones_like(variable))
    before = [variable.numpy() for variable in model.trainable_variables]
    tf.function(train_step.apply)([tf.zeros_like(v) for v in model.trainable_variables])
    kernels = 0
    for variable, old in zip(model.trainable_variables, before, strict=True):
        is_kernel = "/kernel" in variable.name
        kernels += is_kernel
        np.testing.assert_allclose(variable.numpy() / old, 0.95 if is_kernel else 1, rtol=1e-5)
    assert (kernels, len(before)) == (8, 3 * 7 + 2)


@inside
def test_the_learning_rate_follows_the_step_where_float16_overflows() -> None:
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.0))
    model, halves = make_step(scaled)
    for number, value in enumerate((1.0, float("inf"), float("inf"), 1.0), 1):
        tf.function(halves.apply)([tf.fill(v.shape, value) for v in model.trainable_variables])
        assert int(scaled.iterations) == number


@inside
def test_a_call_has_as_many_steps_as_fit_into_its_time() -> None:
    # One step if its duration is unknown.
    taken = (0.0, 0.01, 0.25, 0.9, 1.1, 7.0)
    assert [step_runner.steps_within(2.0, each, 10) for each in taken] == [1, 10, 8, 2, 1, 1]


@inside
def test_only_what_follows_the_data_is_averaged() -> None:
    """A frozen layer keeps all of its bits."""
    model, train_step = make_step(tf.keras.optimizers.SGD(0.5))
    model.layers[1].trainable = False
    assert [v.name for v in model.layers[1].variables] == ["conv/kernel:0"]
    moving = sorted(variable.name.rpartition("/")[2] for variable in train_step.batch_norm_stats)
    assert moving == ["moving_mean:0"] * 7 + ["moving_variance:0"] * 7


def fetch_unknown(indices: Any) -> tuple[Any, Any]:
    """Fetch examples like a user's code that does not declare their number."""
    rows = np.eye(8, dtype=np.float32)
    features = tf.numpy_function(lambda i: rows[i], [indices], tf.float32)
    features.set_shape([None, 8])
    labels = tf.numpy_function(lambda i: i, [indices], tf.int64)
    labels.set_shape([None])
    return features, labels


@inside
def test_the_size_of_a_part_is_known_whatever_fetches_it() -> None:
    zero = tf.constant(0, tf.int64)
    split = types.SimpleNamespace(size=8, fetch=fetch_unknown)
    first = tf.function(lambda: order.batch(split, 1, 6, "none", zero, 2, 4))
    assert first.get_concrete_function().output_shapes == ([4, 8], [4], [4, 2])
