"""Ends of runs and their outputs: early ends, files, checkpoints, user modules, errors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_folders import content, small_disk
from tests.support.training_ranks import (
    Rank,
    Start,
    about_checkpoint,
    patched,
    run_gang,
    saved_steps,
    start_gang,
)
from tests.support.training_script import call, compare_models, inside, modules, np, tf
from train.host import progress_records

checkpoints, settings, state, task = modules(
    "training.checkpoints", "training.settings", "training.state", "training.task"
)
cluster, synchronous = modules("training.cluster", "training.synchronous")

pytestmark = pytest.mark.tensorflow

#: An epoch of the digits has 11 steps.
PER_EPOCH = 11
#: For tests in which the network does not matter, because it is traced fastest.
LINEAR = "--model=linear"

EARLY = (
    "--epochs=50",
    "--patience=2",
    "--min-delta=100",
    "--dropout=0.3",
    "--export=both",
    "--steps-per-execution=2",
    "--checkpoint-seconds=0.000001",
    "--checkpoints-kept=2",
    "--learning-rate=0.05",
)


@pytest.fixture(scope="module")
def early(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Rank:
    """Return the rank of a run whose test loss never falls by as much as required."""
    return run_gang(start, tmp_path_factory.mktemp("early"), *EARLY, workers=1)[0]


def test_an_early_end_leaves_a_final_checkpoint_and_both_models(
    early: Rank, tf_python: str
) -> None:
    line = r"stopping early after epoch 3: no test loss below \d\.\d{4} in 2 tests\n"
    assert len(re.findall(line, early.said())) == 1
    last = early.records()[-1]
    assert (last["step"], last["steps"], last["epoch"]) == (3 * PER_EPOCH, 50 * PER_EPOCH, 3)
    # Each call was followed by a checkpoint; two are kept.
    assert saved_steps(early.folder / "checkpoints") == [32, 33]
    assert {p.name for p in (early.folder / "model").iterdir()} == {"model.keras", "saved_model"}
    kinds = call(tf_python, compare_models, early.folder / "model", (8, 8, 1), project=False)
    assert {package for package, _ in kinds} == {"tf_keras"}
    assert "Dropout" in [kind for _, kind in kinds]
    about = about_checkpoint(early.folder / "checkpoints/ckpt-33.npz")
    assert about["final"] is True
    assert (about["position"]["early"], about["position"]["waited"]) == (True, 2)
    # With --min-delta, the first test had the lowest loss, so its weights are kept.
    assert about["position"]["best_step"] == PER_EPOCH
    assert "keeping the best weights, those of step 11\n" in early.said()
    first = float(re.findall(r"epoch 1/50: .* test_loss (\d\.\d+)", early.said())[0])
    assert last["metrics"]["test_loss"] == pytest.approx(first, abs=1e-4)


def test_an_early_end_is_an_end_also_for_a_resumed_run(
    early: Rank, start: Start, tmp_path: Path
) -> None:
    shutil.copytree(early.folder / "checkpoints", tmp_path / "0/checkpoints")
    [again] = run_gang(start, tmp_path, *EARLY, "--init-from=model.keras", workers=1)
    assert "worker-0: resumed at step 33\n" in again.said()
    assert (
        "warning: --init-from is ignored: resuming from checkpoints/ckpt-33.npz; use --resume "
        "never or another --checkpoint-dir\n"
    ) in again.said()
    assert "training" not in {record["phase"] for record in again.records()}
    assert again.weights() == early.weights()
    assert again.records()[-1]["metrics"] == early.records()[-1]["metrics"]
    assert (again.folder / "model/saved_model").is_dir()


def largest_weight(model: Path) -> float:
    weights = tf.keras.models.load_model(model).get_weights()
    return max(float(abs(array).max()) for array in weights)


@pytest.mark.soak
def test_patience_that_comes_and_goes_leaves_weights_that_were_kept(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    patient = ["--patience=5", "--min-delta=100"]
    runs = [["--epochs=1", *patient], ["--epochs=2"], ["--epochs=3", *patient], ["--epochs=3"]]
    said = [run_gang(start, tmp_path, LINEAR, *run, workers=1)[0].said() for run in runs]
    left = [re.findall(r"keeping the best weights, those of step (\d+)", text) for text in said]
    # The best result before the second run is discarded, because its weights no longer exist.
    assert left == [["11"], [], ["33"], []]
    assert call(tf_python, largest_weight, tmp_path / "0/model/model.keras") > 0


SMALL_FILES = patched("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
""")


def test_a_finished_run_goes_on_and_a_full_disk_costs_no_checkpoint(
    start: Start, tmp_path: Path
) -> None:
    run_gang(start, tmp_path, "--epochs=1", "--export=none", workers=1)
    before = content(tmp_path / "0/checkpoints")
    assert list(before) == ["ckpt-11.npz"]

    # Files as large as a checkpoint cannot be written.
    options = ["--epochs=3", "--checkpoint-every=11"]
    full = start(tmp_path / "0", *options, script=SMALL_FILES)
    assert full.end() == 1
    said = full.said()
    assert "worker-0: resumed at step 11\n" in said
    reason = "to checkpoints: File too large"
    for step in (22, 33):
        assert f"warning: the checkpoint of step {step} was not written {reason}" in said
    assert f"TrainingError: the last checkpoint could not be written {reason}" in said
    assert content(full.folder / "checkpoints") == before


#: Fills the disk of the working folder after the first epoch, and frees it after the third.
FULL_DISK = patched("""
import os
from training import loop

loop._EVENTS_ROOM = 4096
end_epoch = loop.Loop._end_epoch

def fill_and_free(self):
    end_epoch(self)
    epoch = self.position.step // 11
    if epoch == 1:
        try:
            with open("filling", "wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(512))
        except OSError:
            pass
    if epoch == 3:
        os.unlink("filling")

loop.Loop._end_epoch = fill_and_free
worker.ProgressWriter.due = lambda self, phase=None: True
""")


def steps_of_events(folder: Path) -> list[int]:
    """Return the steps of TensorBoard's events; a truncated file is read as far as possible."""
    steps: list[int] = []
    for path in folder.iterdir():
        with contextlib.suppress(tf.errors.DataLossError):
            steps.extend(event.step for event in tf.compat.v1.train.summary_iterator(str(path)))
    return steps


def test_what_is_for_display_alone_ends_no_training(
    start: Start, tmp_path: Path, tf_python: str
) -> None:
    """A rank writes all its files to a disk that is full for two epochs."""
    options = [LINEAR, "--epochs=5", "--export=none", "--checkpoint-seconds=0"]
    options += ["--summary-every=1", "--tensorboard-dir=events"]
    with small_disk(tmp_path / "disk") as disk:
        rank = start(disk, *options, script=FULL_DISK)
        assert rank.end() == 0, rank.said()
        said = rank.said()
        lines = (disk / "progress").read_text().splitlines()
        steps = call(tf_python, steps_of_events, disk / "events")
    assert said.count("epoch 5/5: loss ") == 1
    shown = progress_records.parse_progress("\n".join(lines))
    found = {record["step"] for record in shown if record.get("phase") == "training"}
    assert {11, 44, 55} <= found
    assert not {23, 32} & found
    assert len(lines) - len(shown) <= 2, "more than the record that was cut off, and its end"
    assert {5, 44, 55} <= set(steps)
    assert 30 not in steps


def test_folders_that_cannot_be_made_end_all_ranks_at_the_start(
    start: Start, tmp_path: Path
) -> None:
    options = {
        "checkpoints": "--checkpoint-dir=file/below",
        "model": "--model-dir=file/below",
        "events": "--tensorboard-dir=file/below",
    }
    ranks = {}
    for name, option in options.items():
        for index in range(2):
            folder = tmp_path / name / str(index)
            folder.mkdir(parents=True)
            (folder / "file").touch()
        workers = 1 if name == "events" else 2
        ranks[name] = start_gang(start, tmp_path / name, LINEAR, option, workers=workers)
    [events] = ranks.pop("events")
    assert events.end() == 1
    assert "TrainingError: TensorBoard events cannot be written to file/below: " in events.said()
    for name, gang in ranks.items():
        assert [rank.end() for rank in gang] == [2, 2]
        option = options[name].replace("=", " ")
        reason = f"{option} cannot be written: Not a directory\n"
        for rank in gang:
            assert f"worker.py: error: worker-0 cannot start: {reason}" in rank.said()
            assert "training" not in {record["phase"] for record in rank.records()}
    # Without a model, its folder is not needed. Folders that can be written are left empty.
    option = "--model-dir=file/below"
    [rank] = run_gang(start, tmp_path / "model", LINEAR, option, "--export=none", workers=1)
    assert [path.name for path in (rank.folder / "checkpoints").iterdir()] == ["ckpt-330.npz"]


def of_other_data(checkpoint: Path) -> str:
    about = checkpoints.read(checkpoint, whole=False)
    assert {"model", "data", "batch_size", "precision", "dropout"} <= set(about.identity)
    refusal: str = about.mismatch({**about.identity, "data_sha256": "0"})
    return refusal


def test_a_checkpoint_of_other_data_is_refused_with_a_remedy(early: Rank, tf_python: str) -> None:
    other = r"other data \(their SHA-256 is [0-9a-f]{64}, not 0\)"
    remedy = "use the same options, --resume never, or another --checkpoint-dir"
    found = call(tf_python, of_other_data, early.folder / "checkpoints/ckpt-33.npz")
    assert re.search(f"ckpt-33.npz was written with {other}: {remedy}$", found)


class Broken:
    def __array__(self, *_: Any, **__: Any) -> None:
        raise MemoryError("no room for an array")


@inside
def test_whatever_fails_in_writing_a_checkpoint_blocks_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    writer = checkpoints.Writer(folder, 3, {}, checkpoints.Run(), {})
    failed = f"the last checkpoint could not be written to {folder}: MemoryError: no room for an "
    for _ in range(2):
        for step in (1, 2):
            writer.save(step, {"model.0000": Broken()}, {})
        with pytest.raises(cluster.TrainingError, match=f"^{failed}array$"):
            writer.finish()
    for step in (1, 2):
        writer.save(step, {"model.0000": np.ones(3)}, {})
    writer.finish()

    # Variables of a type that numpy does not have.
    policy = tf.keras.mixed_precision.Policy("bfloat16")
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2, dtype=policy)])
    assert {variable.dtype for variable in model.variables} == {tf.bfloat16}
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    whole = state.TrainingState(tf.distribute.OneDeviceStrategy("/cpu:0"), model, optimizer)

    def values() -> list[Any]:
        return [np.asarray(value, np.float32).tolist() for value in whole.model_values()]

    before = values()
    assert any(any(row) for row in before[0])
    writer.save(7, whole.snapshot(), {})
    writer.finish()
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    whole.restore(checkpoints.read(folder / "ckpt-7.npz").arrays)
    assert values() == before
    assert saved_steps(folder) == [1, 2, 7]
    assert len(list(folder.iterdir())) == 3


@inside
def test_no_checkpoint_is_removed_by_an_attempt_that_could_not_see_it(tmp_path: Path) -> None:
    run = checkpoints.Run("job")
    for steps in ((1, 2, 3, 4), (2,)):
        writer = checkpoints.Writer(tmp_path, 3, {}, run, {})
        for step in steps:
            writer.save(step, {"model.0000": np.full(3, step)}, {})
        writer.finish()
    assert saved_steps(tmp_path) == [2]
    [aside] = tmp_path.glob("replaced-*")
    assert saved_steps(aside) == [3, 4]
    for step in (3, 4):
        read = checkpoints.read(aside / f"ckpt-{step}.npz")
        assert read.arrays["model.0000"].tolist() == [step] * 3


@inside
def test_what_cannot_be_read_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ckpt-5.npz"
    path.symlink_to("/proc/self/mem")  # reading its start is an I/O error
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.read(path)
    checkpoints.PAUSES_S = (0.0, 0.0)
    errors = [MemoryError(), OSError(5, "Input/output error")]

    def attempt() -> int:
        if errors:
            raise errors.pop()
        return 7

    assert checkpoints.patiently(attempt) == 7
    # Nothing replaces a file that cannot be read, because it may be intact.
    writer = checkpoints.Writer(tmp_path, 3, {}, checkpoints.Run("job"), {})
    writer.save(5, {"model.0000": np.ones(3)}, {})
    writer.finish()
    [aside] = tmp_path.glob("replaced-*")
    assert (aside / path.name).is_symlink()
    assert not path.is_symlink()


#: The first attempt to list the checkpoints fails.
AWAY = patched("""
from training import checkpoints

found, errors = checkpoints.found, [OSError(116, "Stale file handle")]

def stale(folder):
    if errors:
        raise errors.pop()
    return found(folder)

checkpoints.found = stale
""")


def test_a_folder_that_cannot_be_read_is_tried_again_and_never_begun_anew(
    early: Rank, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "0/checkpoints"
    shutil.copytree(early.folder / "checkpoints", folder)
    [again] = run_gang(start, tmp_path, *EARLY, workers=1, script=AWAY)
    assert "worker-0: resumed at step 33\n" in again.said()

    (folder / "ckpt-900.npz").symlink_to("/proc/self/mem")
    before = content(early.folder / "checkpoints")
    for options in (EARLY, (*EARLY, "--resume=never")):
        rank = start(tmp_path / "0", *options)
        assert rank.end() == 2
        reason = f"{folder}/ckpt-900.npz cannot be read: Input/output error: make it readable"
        assert f"worker.py: error: worker-0 cannot start: {reason} and start " in rank.said()
    (folder / "ckpt-900.npz").unlink()
    assert content(folder) == before


@pytest.mark.soak
def test_first_weights_are_those_of_another_training(
    early: Rank, start: Start, tmp_path: Path
) -> None:
    # Layers named by Keras have the same names in each model of a process, and in its file.
    (tmp_path / "own.py").write_text(GOOD)
    own = f"--model={tmp_path}/own.py"
    first = start(tmp_path / "own", "--epochs=5", own, "--export=both")
    assert first.end() == 0, first.said()
    # A checkpoint has the last weights, the model the best ones.
    checkpoint = early.folder / "checkpoints/ckpt-33.npz"
    model = early.folder / "model/model.keras"
    (tmp_path / "damaged.npz").write_bytes(checkpoint.read_bytes()[:5000])
    files = ("model.keras", "saved_model")
    runs = {
        "checkpoint": [f"--init-from={checkpoint}", "--ema=0.9"],
        "model": [f"--init-from={model}"],
        "other": [f"--init-from={model}", LINEAR],
        "missing": ["--init-from=nowhere.npz"],
        "damaged": [f"--init-from={tmp_path}/damaged.npz"],
        **{form: [f"--init-from={first.folder}/model/{form}", own] for form in files},
    }
    still = ["--epochs=1", "--learning-rate=1e-9", "--export=none"]
    workers = {"checkpoint": 2, "missing": 2}
    ranks = {
        name: start_gang(start, tmp_path / name, *still, *options, workers=workers.get(name, 1))
        for name, options in runs.items()
    }
    wrong = {"missing": "no such file: nowhere.npz", "damaged": "cannot be read: "}
    for name, gang in ranks.items():
        codes = {rank.end() for rank in gang}
        # When one rank ends with the error, another may lose its peer before it sees the error.
        assert codes - {1} == {2} if name in wrong else codes == {0}, name
    test_losses = re.findall(r"test_loss (\d\.\d+)", early.said())
    own_loss = first.records()[-1]["metrics"]["test_loss"]
    for name, count, test_loss in (
        ("checkpoint", 6, float(test_losses[2])),
        ("model", 6, float(test_losses[0])),
        *((form, 2, own_loss) for form in files),
    ):
        source = runs[name][0].partition("=")[2]
        said = ranks[name][0].said()
        assert f"worker-0: {count} of {count} variables are initialized from {source}\n" in said
        found = ranks[name][0].records()[-1]["metrics"]["test_loss"]
        assert found == pytest.approx(test_loss, abs=1e-4)
    # A network that only shares the last biases.
    told = f"worker-0: 1 of 2 variables are initialized from {model}; not outputs/kernel\n"
    assert told in ranks["other"][0].said()
    for name, text in wrong.items():
        for rank in (rank for rank in ranks[name] if rank.end() == 2):
            assert "worker.py: error: worker-0 cannot start: --init-from" in rank.said()
            assert text in rank.said()


#: Settings, and the error of the task or of the strategy.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"batch_size": 1440},
        "--batch-size 1440 is too large: --data digits has only 1437 training examples",
    ),
    (
        {"normalize": "imagenet"},
        "--normalize imagenet requires images with three color channels, but digits has the "
        "shape [8, 8, 1]",
    ),
    ({"class_weights": (1.0, 2.0)}, "--class-weights has 2 numbers, but digits has 10 classes"),
    ({"top_k": 10}, "--top-k 10: must be less than the number of classes, 10"),
    ({"devices": ("gpu:0",)}, "--devices gpu:0: this process has none of this kind"),
    ({"communication": "nccl"}, "--communication nccl needs GPUs: use ring or auto"),
]


@inside
def test_what_cannot_be_is_refused_by_its_option() -> None:
    workers = cluster.Cluster({"worker": ["a:1", "b:1"]}, "worker", 1)

    def begin(given: Any) -> None:
        task.open_task(given)
        synchronous.make_strategy(given, workers)

    for options, reason in REFUSALS:
        with pytest.raises(cluster.ConfigError) as refused:
            begin(settings.Settings(**options))
        assert str(refused.value) == reason


def write_npz(path: Path) -> None:
    x, y = np.zeros((20, 4)), np.zeros(20, int)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def test_data_missing_on_one_worker_end_both(start: Start, tmp_path: Path, tf_python: str) -> None:
    (tmp_path / "0/own").mkdir(parents=True)
    call(tf_python, write_npz, tmp_path / "0/own/own.npz")
    ranks = start_gang(start, tmp_path, "--data=npz", "--data-dir=own", "--batch-size=10")
    assert [rank.end() for rank in ranks] == [1, 2]
    assert "TrainingError: lost contact with worker-1: " in ranks[0].said()
    line = f"error: npz: {tmp_path}/1/own (--data-dir) does not exist\n"
    assert line in ranks[1].said()


NUMBERS = """
import numpy as np

def build_dataset(seed, folder):
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(240, 3)).astype("float32")
    weights = np.array([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]])
    labels = features @ weights
    return (features[:200], labels[:200]), (features[200:], labels[200:])
"""
HUBER = """
import tensorflow as tf

def build_model(shape, *, classes, seed):
    assert classes is None
    return tf.keras.Sequential([tf.keras.Input(shape), tf.keras.layers.Dense(2)])

def loss(labels, outputs):
    return tf.reduce_sum(tf.abs(labels - outputs), axis=1)
"""
DATASET = """
import tensorflow as tf
import beside

def build_dataset(seed):
    whole = tf.data.Dataset.range(300).map(beside.example)
    return whole.take(240), whole.skip(240)
"""
BESIDE = """
import tensorflow as tf

def example(number):
    label = number % 3
    return tf.one_hot(label, 3) + tf.cast(number % 7, tf.float32), label
"""


HOOKS = """
import tensorflow as tf

def loss(labels, outputs):
    return 3.0 * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

def sure(labels, outputs):
    return tf.reduce_max(tf.nn.softmax(outputs), axis=1)

def metrics():
    return {"sureness": sure}

def build_optimizer(learning_rate):
    return tf.keras.optimizers.RMSprop(learning_rate)
"""


@pytest.mark.soak
def test_own_modules_learn_numbers_and_classes(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    files = {
        "numbers": NUMBERS,
        "huber": HUBER,
        # A tf.data.Dataset, a module next to the file, and a loss, metrics and an optimizer.
        "data": f"{DATASET}{HOOKS}",
        "beside": BESIDE,
        "model": f"{GOOD}def loss(labels, outputs): return outputs",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    common = ["--batch-size=20", "--learning-rate=0.05", "--export=none"]
    numbers, data = f"--data={tmp_path}/numbers.py", f"--data={tmp_path}/data.py"
    runs = {
        "classes": ["--epochs=20", "--learning-rate=0.02", data],
        # A label of two numbers, with the squared error and with the user's loss.
        "squared": ["--epochs=12", numbers],
        "absolute": ["--epochs=12", numbers, f"--model={tmp_path}/huber.py"],
        "both": [data, f"--model={tmp_path}/model.py"],
    }
    ranks = {name: start(tmp_path / name, *common, *more) for name, more in runs.items()}
    assert [rank.end() for rank in ranks.values()] == [0, 0, 0, 2], ranks["classes"].said()
    both = ranks.pop("both").said()
    assert f"{tmp_path}/model.py and {tmp_path}/data.py both define loss(): remove one" in both
    classes, squared, absolute = (rank.records()[-1]["metrics"] for rank in ranks.values())
    assert classes["test_accuracy"] > 0.9
    assert 1 / 3 < classes["test_sureness"] <= 1
    assert squared["test_mean_absolute_error"] < 0.05
    # The user's loss is a sum over two numbers, and the metric is their mean.
    assert absolute["test_loss"] == pytest.approx(2 * absolute["test_mean_absolute_error"])
    assert absolute["test_mean_absolute_error"] < 0.3
    # The user's optimizer has the number of steps, and a mean square for each variable.
    names = call(tf_python, array_names, ranks["classes"].folder / "checkpoints/ckpt-240.npz")
    assert len([name for name in names if name.startswith("optimizer.")]) == 1 + 2


def array_names(path: Path) -> list[str]:
    return sorted(checkpoints.read(path).arrays)


MODEL = "import tensorflow as tf\nK = tf.keras\ndef build_model(shape): return K.Sequential("
GOOD = f"{MODEL}[K.Input(shape), K.layers.Flatten(), K.layers.Dense(10)])\n"
SUBCLASSED = """
import tensorflow as tf
from training.keyed import Dropout

def build_model():
    return Own()

class Own(tf.keras.Model):
    def __init__(self, **options):
        super().__init__(name="own", **options)
        self.flat, self.dense = tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)
        self.drop = Dropout(0.3, stream=0)

    def call(self, inputs, training=None):
        x = self.flat(inputs)
"""
#: Modules for --model or --data, and their errors.
MODULES: dict[str, tuple[str, str]] = {
    "data-none": ("x = 1", "has no function build_dataset()"),
    "data-asks": (
        "def build_dataset(shape): pass",
        "build_dataset() requires the argument 'shape', but only seed, folder can be passed",
    ),
    "data-pair": (
        "def build_dataset(): return 1",
        "build_dataset() must return a pair: training data",
    ),
    "data-endless": (
        "import tensorflow as tf\ndef build_dataset(*_, **more):\n"
        "  d = tf.data.Dataset.from_tensors(([1.0], 1)).repeat()\n  return d, d",
        "train: the dataset is infinite or its size is unknown: use take()",
    ),
    "model-none": ("loss = None", "has no function build_model()"),
    "model-asks": (
        "def build_model(width): pass",
        "build_model() requires the argument 'width', but only shape, classes, seed, folder can",
    ),
    "model-other": (
        "def build_model(*names): return len(names)",
        "build_model() returned builtins.int, expected a tf.keras.Model of Keras 2",
    ),
    "model-broken": ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No"),
    "model-syntax": ("def build_model(:", "cannot be imported: SyntaxError: "),
    "model-metrics": (
        f"{GOOD}def metrics(): return {{'loss': lambda labels, outputs: labels}}",
        "metrics() must return a dictionary of functions with unique names",
    ),
    "model-outputs": (
        GOOD.replace("10", "5"),
        "build_model() returned a model with outputs [None, 5], but the data has 10 classes",
    ),
    "model-loss-asks": (
        f"{GOOD}def loss(outputs): return outputs",
        "loss must be a function loss(labels, outputs)",
    ),
    "model-subclassed-dropout": (
        f"{SUBCLASSED}        x = self.drop(x, training=training)\n        return self.dense(x)\n",
        "the subclassed model own uses training.keyed.Dropout, which can be replaced by Keras' own "
        "only in a Sequential or functional model: change it, or use --export none",
    ),
    "model-loss-value": (f"{GOOD}loss = 3", "loss must be a function loss(labels, outputs)"),
    "model-loss-mean": (
        f"{GOOD}loss = tf.keras.losses.SparseCategoricalCrossentropy()",
        "loss(labels, outputs) returns (), expected a float for each example: do not average over",
    ),
}


def served(folder: Path) -> tuple[int, int]:
    model = tf.saved_model.load(str(folder))
    return tuple(model.serve(np.zeros((7, 8, 8, 1), np.float32)).shape)


def test_subclassed_models_are_exported_or_one_line(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    dropping = f"{SUBCLASSED}        return self.dense(self.drop(x, training=training))\n"
    plain = dropping.replace("self.drop = Dropout(0.3, stream=0)", "")
    texts = {
        "plain": plain.replace("self.drop(x, training=training)", "x"),
        "dropping": dropping,
        # Keras cannot save a layer with such an argument.
        "unsaved": GOOD.replace("K.layers.Flatten()", "K.layers.Flatten(), Own(object())")
        + "class Own(K.layers.Layer):\n"
        "  def __init__(self, thing):\n    super().__init__()\n    self.thing = thing\n",
    }
    forms = {"plain": "both", "dropping": "none", "unsaved": "keras"}
    ranks = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
        options = [f"--model={tmp_path}/{name}.py", f"--export={forms[name]}", "--epochs=1"]
        ranks[name] = start(tmp_path / name, *options)
    codes = {name: rank.end() for name, rank in ranks.items()}
    assert codes == {"plain": 0, "dropping": 0, "unsaved": 1}, [r.said() for r in ranks.values()]
    assert call(tf_python, served, tmp_path / "plain/model/saved_model") == (7, 10)
    assert "TrainingError: the model could not be written to model: " in ranks["unsaved"].said()
    assert saved_steps(tmp_path / "unsaved/checkpoints") == [PER_EPOCH]


def check_modules(folder: Path) -> str:
    """Check the error of each of MODULES, and return one of them."""
    for name, (_, reason) in MODULES.items():
        path = folder / f"{name}.py"
        given = dataclasses.replace(settings.Settings(), **{name.partition("-")[0]: str(path)})
        with pytest.raises(cluster.ConfigError) as refused:
            task.open_task(given).build_model()
        said = str(refused.value)
        assert said.startswith(str(path))
        assert reason in said
        assert "\n" not in said
        if name == "model-none":
            none = said
    good = dataclasses.replace(settings.Settings(), model=str(folder / "model-good.py"))
    assert task.open_task(good).build_model() is not None
    return none


def test_own_modules_that_cannot_be_used_are_one_line_of_all_ranks(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    for name, (text, _) in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "model-good.py").write_text(GOOD)
    ranks = start_gang(start, tmp_path, f"--model={tmp_path}/model-none.py")
    told = call(tf_python, check_modules, tmp_path)
    for rank in ranks:
        assert rank.end() == 2, rank.said()
        assert f"\nworker.py: error: {told}\n" in rank.said()
        assert "Traceback" not in rank.said()
