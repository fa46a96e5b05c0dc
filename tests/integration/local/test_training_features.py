"""What changes how a training computes, and must not change what it learns."""

from __future__ import annotations

import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import (
    Rank,
    Start,
    kill,
    run_gang,
    saved_steps,
    start_gang,
    wait_until,
)
from tests.support.training_script import result_of, scalars

pytestmark = pytest.mark.tensorflow

#: An epoch of the digits has 11 steps of 120 examples.
PER_EPOCH = 11


def run_all(start: Start, folder: Path, runs: dict[str, list[str]]) -> dict[str, Rank]:
    """Run the program once for each list of options, two at a time: there are two cores."""
    ranks: dict[str, Rank] = {}
    names = list(runs)
    for first in range(0, len(names), 2):
        pair = names[first : first + 2]
        ranks |= {name: start(folder / name, *runs[name]) for name in pair}
        assert [ranks[name].end() for name in pair] == [0] * len(pair), [
            ranks[name].said() for name in pair
        ]
    return ranks


# ---------------------------------------------------------------------------------- the same

WARMUP, EPOCHS = 7, 4
COSINE = (
    f"--epochs={EPOCHS}",
    "--summary-every=1",
    "--export=none",
    "--dropout=0.2",
    "--schedule=cosine",
    f"--warmup-steps={WARMUP}",
    "--learning-rate=0.05",
    "--base-batch-size=60",
)
DEVICES = {
    "one": [],
    "two": ["--devices=cpu:0,cpu:1"],
    "parts": ["--accumulate=4"],
    "two-parts": ["--devices=cpu:0,cpu:1", "--accumulate=4"],
}


@pytest.fixture(scope="module")
def devices(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rank]:
    """Runs that share a batch in different ways."""
    runs = {name: [*COSINE, *more] for name, more in DEVICES.items()}
    return run_all(start, tmp_path_factory.mktemp("devices"), runs)


@pytest.fixture(scope="module")
def written(devices: dict[str, Rank], tf_python: str) -> list[dict[str, dict[int, float]]]:
    """What these have written for TensorBoard."""
    return scalars(tf_python, *devices.values())


def test_devices_and_parts_of_a_batch_change_no_number(
    devices: dict[str, Rank], written: list[dict[str, dict[int, float]]]
) -> None:
    for name, rank in devices.items():
        assert f"replicas {1 + name.startswith('two')}," in rank.said()
    alone, *others = written
    assert len(alone["train/loss"]) == EPOCHS * PER_EPOCH
    last = devices["one"].records()[-1]["metrics"]
    assert last["test_accuracy"] > 0.85
    for other, rank in zip(others, list(devices.values())[1:], strict=True):
        assert other["train/loss"] == pytest.approx(alone["train/loss"], abs=1e-5)
        assert other["train/accuracy"] == pytest.approx(alone["train/accuracy"], abs=1e-5)
        assert rank.records()[-1]["metrics"] == pytest.approx(last, abs=1e-5)


def test_events_hold_the_rate_of_a_cosine_after_a_warm_up(
    written: list[dict[str, dict[int, float]]],
) -> None:
    rates = written[0]["train/learning_rate"]
    full, total = 0.05 * 120 / 60, EPOCHS * PER_EPOCH
    expected = {}
    for step in range(1, total + 1):  # an event of step s tells of the rate that made it
        if step <= WARMUP:
            expected[step] = full * step / WARMUP
        else:
            part = (step - 1 - WARMUP) / (total - WARMUP)
            expected[step] = full * math.cos(part * math.pi / 2) ** 2
    assert rates == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_events_are_means_over_the_steps_between_them(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    # However many of them are made in a call, and across a restart.
    common = ["--summary-every=5", "--export=none", "--learning-rate=0.02"]
    runs = {"each": ["--steps-per-execution=1", "--epochs=4"], "many": ["--epochs=2"]}
    ranks = run_all(start, tmp_path, {name: [*common, *more] for name, more in runs.items()})
    ranks |= run_all(start, tmp_path, {"many": [*common, "--epochs=4"]})
    assert "resumed at step 22" in ranks["many"].said()
    each, many = (of["train/loss"] for of in scalars(tf_python, *ranks.values()))
    assert sorted(each) == [*range(5, 45, 5)]
    assert many == each


def test_events_until_a_sigterm_are_kept(start: Start, tf_python: str, tmp_path: Path) -> None:
    rank = start(tmp_path, "--epochs=1000000", "--summary-every=1", "--evaluate-every=0")
    rank.wait_for("training")
    rank.process.send_signal(signal.SIGTERM)
    assert rank.end() == 128 + signal.SIGTERM
    [checkpoint] = (rank.folder / "checkpoints").iterdir()
    steps = scalars(tf_python, rank)[0]["train/loss"]
    assert sorted(steps) == list(range(1, int(checkpoint.stem[5:]) + 1))


# ---------------------------------------------------------------------------------- other ways

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
    "float16": ["--precision=float16"],
}


@pytest.fixture(scope="module")
def others(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rank]:
    """Runs that compute in other ways."""
    runs = {name: ["--epochs=4", "--export=none", *more] for name, more in OTHERS.items()}
    return run_all(start, tmp_path_factory.mktemp("others"), runs)


@pytest.mark.parametrize("way", OTHERS)
def test_each_way_to_compute_learns(others: dict[str, Rank], way: str) -> None:
    last = others[way].records()[-1]
    assert last["loss"] < 0.7
    assert last["metrics"]["test_accuracy"] > 0.85
    assert last["metrics"]["test_loss"] < 0.5


def test_events_hold_the_rate_of_milestones(others: dict[str, Rank], tf_python: str) -> None:
    rates = scalars(tf_python, others["deterministic"])[0]["train/learning_rate"]
    expected = {1: 0.05 / 3, 2: 0.1 / 3}
    expected |= dict.fromkeys(range(3, 23), 0.05)
    expected |= dict.fromkeys(range(23, 31), 0.025) | dict.fromkeys(range(31, 45), 0.0125)
    assert rates == pytest.approx(expected, rel=1e-5)


CHECKPOINTS = """
from training import checkpoints

read = [checkpoints.read(Path(path)) for path in sys.argv[1:]]
same = all(np.array_equal(read[0].arrays[name], read[1].arrays[name]) for name in read[0].arrays)
last = sorted(read[0].arrays)[-2:]
done([same, [float(read[0].arrays[name]) for name in last]])
"""


def test_resumed_float16_ends_with_the_same_bits(
    others: dict[str, Rank], start: Start, tf_python: str, tmp_path: Path
) -> None:
    half = ["--export=none", "--precision=float16"]
    run_gang(start, tmp_path, "--epochs=2", *half, workers=1)
    [rank] = run_gang(start, tmp_path, "--epochs=4", *half, workers=1)
    assert "resumed at step 22" in rank.said()
    assert rank.weights() == others["float16"].weights()

    files = [str(run.folder / "checkpoints/ckpt-44.npz") for run in (rank, others["float16"])]
    same, (counter, scale) = result_of(tf_python, CHECKPOINTS, *files)
    assert same
    # The loss was scaled all the while, and steps whose gradients were too large were left out.
    assert 0 < counter <= 44
    assert 1 < scale <= 2**15


# ---------------------------------------------------------------------------------- BatchNorm

RESNET = (
    "--model=resnet20",
    "--data=synthetic",
    "--examples=240",
    "--batch-size=24",
    "--epochs=1",
    "--learning-rate=0.01",
    "--summary-every=1",
    "--export=none",
)


EVERY_RECORD = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import worker

worker.ProgressWriter.due = lambda self, phase: True
worker.main()
"""


def test_batch_norm_is_the_same_in_all_ranks_and_for_any_number_of_them(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    apart = run_gang(start, tmp_path / "apart", *RESNET, script=EVERY_RECORD)
    together = run_gang(start, tmp_path / "together", *RESNET, "--sync-batch-norm")
    deep = ["--model=resnet56", "--examples=16", "--batch-size=8"]
    ranks = run_all(start, tmp_path, {"alone": [*RESNET], "deep": [*RESNET, *deep]})
    # The hash is also of the moving statistics.
    for gang in (apart, together):
        assert gang[0].weights() == gang[1].weights()
    check_times(apart)

    runs = [apart[0], together[0], ranks["alone"], ranks["deep"]]
    losses = [tags["train/loss"] for tags in scalars(tf_python, *runs)]
    assert [len(of) for of in losses] == [10, 10, 10, 2]
    first = range(1, 4)  # rounding grows from step to step
    separate, shared, whole = ([of[step] for step in first] for of in losses[:3])
    assert shared == pytest.approx(whole, rel=1e-4)
    assert separate != pytest.approx(whole, rel=1e-4)
    assert all(math.isfinite(loss) for loss in losses[3].values())


def test_batch_norm_is_resumed_by_all_ranks(start: Start, tmp_path: Path) -> None:
    """One rank reads the checkpoint, and its moving statistics, and gives them to the other."""
    small = [*RESNET, "--examples=48"]
    run_gang(start, tmp_path / "parts", *small)
    parts = run_gang(start, tmp_path / "parts", *small, "--epochs=2")
    assert "worker-0: resumed at step 2" in parts[0].said()
    whole = run_gang(start, tmp_path / "whole", *small, "--epochs=2")
    assert len({rank.weights() for rank in (*parts, *whole)}) == 1


MOVING = """
from training import checkpoints

found = []
for path in sys.argv[1:]:
    read = checkpoints.read(Path(path))
    moving = [name for name, own in read.names.items() if "/moving_" in own]
    found.append([float(read.arrays[name].mean()) for name in moving])
done(found)
"""


def test_parts_of_a_batch_change_batch_norm_as_replicas_do(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    devices = ",".join(f"cpu:{number}" for number in range(4))
    runs = {"parts": ["--accumulate=4"], "replicas": [f"--devices={devices}"]}
    ranks = run_all(start, tmp_path, {name: [*RESNET, *more] for name, more in runs.items()})
    losses = [of["train/loss"] for of in scalars(tf_python, *ranks.values())]
    parts, replicas = ([of[step] for step in range(1, 5)] for of in losses)
    assert parts == pytest.approx(replicas, rel=1e-4)
    files = [str(rank.folder / "checkpoints/ckpt-10.npz") for rank in ranks.values()]
    of_parts, of_replicas = result_of(tf_python, MOVING, *files)
    assert len(of_parts) == 38
    # Four changes a step in place of one would move them by more than half.
    assert of_parts == pytest.approx(of_replicas, rel=0.02, abs=1e-3)


# ---------------------------------------------------------------------------------- the exchange

PACKED = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import worker
from training import step

step.PACK_BYTES = 2000
worker.main()
"""
SHORT = ("--epochs=3", "--export=none", "--learning-rate=0.05")
LONG = ("--epochs=100", "--export=none", "--checkpoint-every=20", "--learning-rate=0.05")


@pytest.fixture(scope="module")
def exchanged(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Rank:
    """The chief of two workers that exchange float32 in one pack."""
    return run_gang(start, tmp_path_factory.mktemp("exchanged"), *SHORT)[0]


def test_gradients_in_packs_give_the_same_bits(
    start: Start, tmp_path: Path, exchanged: Rank
) -> None:
    ranks = run_gang(start, tmp_path, *SHORT, script=PACKED)
    assert [rank.weights() for rank in ranks] == [exchanged.weights()] * 2


@pytest.mark.parametrize(("precision", "workers"), [("bfloat16", 2), ("float16", 3)])
def test_fewer_bits_in_the_exchange_learn_the_same(
    start: Start, tmp_path: Path, exchanged: Rank, precision: str, workers: int
) -> None:
    options = [*SHORT, f"--exchange-precision={precision}"]
    ranks = run_gang(start, tmp_path, *options, script=PACKED, workers=workers)
    assert len({rank.weights() for rank in ranks}) == 1
    assert ranks[0].weights() != exchanged.weights()
    expected = exchanged.records()[-1]
    assert ranks[0].records()[-1]["loss"] == pytest.approx(expected["loss"], rel=0.02)


def test_fewer_bits_in_the_exchange_survive_a_kill_and_a_lost_worker(
    start: Start, tmp_path: Path
) -> None:
    options = [*LONG, "--exchange-precision=bfloat16"]
    whole = run_gang(start, tmp_path / "whole", *options)[0]
    folder = tmp_path / "killed"
    ranks = start_gang(start, folder, *options)
    ranks[0].wait_for("training")
    wait_until(ranks[0], lambda: bool(saved_steps(folder / "0/checkpoints")))
    kill(ranks, [1])
    assert all(rank.process.returncode for rank in ranks)
    shutil.copytree(folder / "0/checkpoints", tmp_path / "alone/0/checkpoints")

    again = run_gang(start, folder, *options)
    assert "worker-0: resumed at step " in again[0].said()
    assert [rank.weights() for rank in again] == [whole.weights()] * 2
    # One worker has nobody to exchange with: it computes what two did, with all bits.
    [alone] = run_gang(start, tmp_path / "alone", *options, workers=1)
    assert "worker-0: resumed at step " in alone.said()
    assert alone.weights() != whole.weights()
    loss = whole.records()[-1]["loss"]
    assert alone.records()[-1]["loss"] == pytest.approx(loss, rel=0.02)


def check_times(ranks: list[Rank]) -> None:
    """Make sure that the records of training tell the parts of a step's time, and memory."""
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


# ---------------------------------------------------------------------------------- in a process

STEP = """
from training import models, order, step
from training.loop import Reporter
from training.step import Outcome
from training.task import make_objective

result = {}
strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
model = models.build("resnet20", (8, 8, 3), 10, 1)
for variable in model.trainable_variables:  # not at 0, where a decay would not be seen
    variable.assign_add(tf.ones_like(variable))
before = [v.numpy() for v in model.trainable_variables]
optimizer = tf.keras.optimizers.SGD(0.5)
optimizer.build(model.trainable_variables)
train_step = step.TrainStep(model, optimizer, make_objective(10), 8, weight_decay=0.1)
tf.function(train_step.apply)([tf.zeros_like(v) for v in model.trainable_variables])
result["factors"] = {
    v.name: [float((v.numpy() / old).min()), float((v.numpy() / old).max())]
    for v, old in zip(model.trainable_variables, before)
}

# The learning rate follows the step, also where gradients were too large for float16.
scaled = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.0))
scaled.build(model.trainable_variables)
halves = step.TrainStep(model, scaled, make_objective(10), 8)
counted = []
for value in (1.0, float("inf"), float("inf"), 1.0):
    gradients = [tf.fill(v.shape, value) for v in model.trainable_variables]
    tf.function(halves.apply)(gradients)
    counted.append(int(scaled.iterations))
result["counted"] = counted

# Calls take about as long as they should, and one step where nothing is known.
result["calls"] = [step.steps_within(2.0, s, 10) for s in (0.0, 0.01, 0.25, 0.9, 1.1, 7.0)]

# What does not follow the data is not exchanged: a frozen layer stays as it is to the last bit.
model.layers[1].trainable = False
result["moving"] = sorted(v.name.rpartition("/")[2] for v in train_step.moving)
result["frozen"] = [v.name for v in model.layers[1].variables]

# A fetch of the user's own may not tell how many examples it gives.
class Unknown:
    size = 8
    raw = "an attribute of the user's own"
    def fetch(self, indices):
        rows = np.eye(8, dtype=np.float32)
        features = tf.numpy_function(lambda i: rows[i], [indices], tf.float32)
        features.set_shape([None, 8])
        labels = tf.numpy_function(lambda i: i, [indices], tf.int64)
        labels.set_shape([None])
        return features, labels

first = tf.function(lambda: order.batch(Unknown(), 1, 6, "none", tf.constant(0, tf.int64), 2, 4))
result["shapes"] = [list(shape) for shape in first.get_concrete_function().output_shapes]

# Without a clock, nothing is told of the parts of a step's time.
class Progress:
    records = []
    def due(self, phase):
        return True
    def write(self, phase, **fields):
        self.records.append(fields)

reporter = Reporter(Progress(), 8, {}, False, {})
for number, taken in ((1, (None, None)), (2, (None, None)), (3, (0.25, 0.5))):
    reporter.training(number, 1, Outcome(1, {"loss": 1.0}, input_s=taken[0], exchange_s=taken[1]))
result["times"] = [sorted(record.get("step_time", ())) for record in Progress.records]
done(result)
"""


@pytest.fixture(scope="module")
def step(tf_python: str) -> Any:
    """What the script STEP has found."""
    return result_of(tf_python, STEP)


def test_weight_decay_is_for_kernels_alone(step: Any) -> None:
    factors = step["factors"]
    assert len(factors) == 3 * 19 + 2
    for name, seen in factors.items():
        expected = 1 - 0.5 * 0.1 if "/kernel" in name else 1
        assert seen == pytest.approx([expected] * 2, rel=1e-5), name
    assert sum("/kernel" in name for name in factors) == 20


def test_the_learning_rate_follows_the_step_where_float16_overflows(step: Any) -> None:
    assert step["counted"] == [1, 2, 3, 4]


def test_a_call_has_as_many_steps_as_fit_into_its_time(step: Any) -> None:
    assert step["calls"] == [1, 10, 8, 2, 1, 1]


def test_only_what_follows_the_data_is_averaged(step: Any) -> None:
    assert step["frozen"] == ["conv/kernel:0"]
    assert step["moving"] == ["moving_mean:0"] * 19 + ["moving_variance:0"] * 19


def test_the_size_of_a_part_is_known_whatever_fetches_it(step: Any) -> None:
    assert step["shapes"] == [[4, 8], [4], [4, 2]]


def test_times_that_are_not_taken_are_not_told(step: Any, others: dict[str, Rank]) -> None:
    assert step["times"] == [[], [], ["compute_ms", "exchange_ms", "input_ms"]]
    assert not any("step_time" in record for record in others["deterministic"].records())
