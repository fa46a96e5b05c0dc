"""The training program: its options, its data, and gangs of it on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, free_port

TRAIN = REPOSITORY / "train"
WORKER = TRAIN / "worker.py"
#: Seconds after which a process of a test is given up.
PATIENCE = 120


def tf_config(kind: str, index: int, **jobs: list[str]) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


def clean_environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TRAIN_"))}
    return {**kept, **variables}


def check(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(WORKER), *arguments, "--check"],
        env=clean_environment(COLUMNS="200", **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# ---------------------------------------------------------------------------------- options

BAD_OPTIONS = [
    ("--epochs", "0", "'0' is not a whole number from 1 to 1000000"),
    ("--epochs", "1.5", "'1.5' is not a whole number"),
    ("--batch-size", "0", "from 1 to 1437"),
    ("--batch-size", "1438", "from 1 to 1437"),
    ("--learning-rate", "0", "from 1e-09 to 1000"),
    ("--learning-rate", "nan", "'nan' is not a number"),
    ("--learning-rate", "fast", "'fast' is not a number"),
    ("--seed", "-1", "from 0 to 1000000000"),
    ("--steps-per-execution", "0", "from 1 to"),
    ("--checkpoint-every", "-5", "from 0 to"),
    ("--start-timeout", "0", "from 1 to"),
    ("--start-timeout", "inf", "'inf' is not a number"),
    ("--checkpoint-dir", "", "'' is not a folder"),
    ("--model-dir", str(WORKER), "is not a folder"),
]


@pytest.mark.parametrize(("option", "value", "limit"), BAD_OPTIONS)
def test_bad_value_is_named_with_its_limit(option: str, value: str, limit: str) -> None:
    done = check(f"{option}={value}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"worker.py: error: argument {option}: ")
    assert limit in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_bad_values_cover_every_option() -> None:
    offered = set(re.findall(r"^  (--[a-z-]+)", check("--help").stdout, re.MULTILINE))
    assert offered - {"--check"} == {option for option, _, _ in BAD_OPTIONS}


@pytest.mark.parametrize("wrong", ["--epoch=3", "--nope", "extra"])
def test_unknown_option_is_an_error(wrong: str) -> None:
    done = check(wrong)
    assert (done.returncode, wrong in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["TRAIN_SEED", "TRAIN_START_TIMEOUT"])
def test_bad_variable_is_named(name: str) -> None:
    done = check(**{name: "soon"})
    assert done.returncode == 2
    assert done.stderr.startswith(f"worker.py: error: environment variable {name}: 'soon'")


BAD_TF_CONFIGS = {
    "{": "not JSON",
    "[]": "must be a JSON object",
    '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}': "cluster.worker",
    '{"cluster": {"worker": ["a:1"]}}': "task must be like",
    tf_config("worker", 2, worker=["a:1", "b:1"]): "worker-2 is not in the cluster",
    tf_config("chief", 0, chief=["a:1", "b:1"]): "2 chiefs",
    tf_config("worker", 0, worker=["a:1"], ps=["b:1"]): "parameter servers",
}


@pytest.mark.parametrize("config", BAD_TF_CONFIGS)
def test_bad_tf_config_is_one_line(config: str) -> None:
    done = check(TF_CONFIG=config)
    assert done.returncode == 2
    assert BAD_TF_CONFIGS[config] in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("size", "config", "advice"),
    [
        ("100", tf_config("worker", 2, worker=["a:1", "b:1", "c:1"]), "take 99 or 102"),
        ("100", tf_config("evaluator", 0, chief=["a:1"], worker=["b:1", "c:1"]), "3 replicas"),
        ("1", tf_config("worker", 0, worker=["a:1", "b:1"]), "take 2"),
        ("100", tf_config("worker", 0, worker=["a:1", "b:1"]), None),
        ("99", tf_config("worker", 0, chief=["a:1"], worker=["b:1", "c:1"]), None),
        ("7", "", None),
    ],
)
def test_global_batch_must_divide_without_tensorflow(
    tmp_path: Path, size: str, config: str, advice: str | None
) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    done = check("--batch-size", size, TF_CONFIG=config, PYTHONPATH=str(tmp_path))
    if advice is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    else:
        assert done.returncode == 2
        assert f"--batch-size {size}" in done.stderr
        assert advice in done.stderr


# ---------------------------------------------------------------------------------- processes


@dataclass
class Rank:
    """A process of the training program (or of code that uses it) and its folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    def end(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "progress"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, phase: str) -> dict[str, Any]:
        """Return the first record of a phase, once there is one."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            for record in self.records():
                if record["phase"] == phase:
                    return record
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"no record of phase {phase}: {self.said()}")


Start = Callable[..., Rank]


@pytest.fixture(scope="module")
def start(tf_python: str) -> Iterator[Start]:
    """Return a function that starts a rank in a folder, under a script or the program itself."""
    ranks: list[Rank] = []

    def begin(
        folder: Path, *arguments: str, script: str = "", variables: Mapping[str, str] | None = None
    ) -> Rank:
        folder.mkdir(parents=True)
        environment = clean_environment(
            TRAIN_PROGRESS_FILE=str(folder / "progress"), PYTHONPATH=str(TRAIN), **variables or {}
        )
        program = ["-c", script] if script else [str(WORKER)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [tf_python, *program, *arguments],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        ranks.append(Rank(process, folder))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()


def start_gang(start: Start, folder: Path, *arguments: str, **options: Any) -> list[Rank]:
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    return [
        start(
            folder / str(index),
            *arguments,
            variables={"TF_CONFIG": tf_config("worker", index, worker=addresses)},
            **options,
        )
        for index in range(2)
    ]


@pytest.fixture(scope="module")
def gang(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """Two ranks that have trained to the end with the default options."""
    ranks = start_gang(start, tmp_path_factory.mktemp("gang"), "--checkpoint-every", "100")
    assert [rank.end() for rank in ranks] == [0, 0], [rank.said() for rank in ranks]
    return ranks


# ---------------------------------------------------------------------------------- training

ORDER = """
import json
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from host import digits

SIZE = 120
STEPS = 2 * digits.steps_per_epoch(SIZE)

def order(replicas, own, seed=5):
    batches = digits.batch_indices(seed, SIZE, replicas, own)
    return [list(map(int, b)) for b in batches.take(STEPS * len(own)).as_numpy_iterator()]

whole = {seed: order(1, range(1), seed) for seed in (5, 6)}
shares = {n: [order(n, range(r, r + 1)) for r in range(n)] for n in (1, 2, 3)}
pairs = [order(4, range(0, 2)), order(4, range(2, 4))]

# What two replicas of one process are really fed: an image's number stands in its only pixel.
numbers = tf.range(digits.TRAIN_EXAMPLES, dtype=tf.float32)[:, None, None, None]
examples = digits.Examples(numbers, tf.zeros(digits.TRAIN_EXAMPLES, tf.int64))
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
iterator = iter(digits.distribute(strategy, examples, 5, SIZE))
fed = []
for _ in range(STEPS):
    images, _ = next(iterator)
    local = strategy.experimental_local_results(images)
    fed.append([[int(x) for x in share.numpy().ravel()] for share in local])
print("RESULT" + json.dumps([whole, shares, pairs, fed]))
"""


def result_of(rank: Rank) -> Any:
    assert rank.end() == 0, rank.said()
    return json.loads(rank.said().partition("RESULT")[2].splitlines()[0])


@pytest.mark.tensorflow
def test_shares_of_any_number_of_replicas_are_the_global_batch(
    start: Start, tmp_path: Path
) -> None:
    whole, shares, pairs, fed = result_of(start(tmp_path / "order", script=ORDER))
    batches = whole["5"]
    per_epoch = 1437 // 120
    assert len(batches) == 2 * per_epoch

    for epoch in (batches[:per_epoch], batches[per_epoch:]):
        drawn = [index for batch in epoch for index in batch]
        assert len(set(drawn)) == len(drawn) == per_epoch * 120
        assert 0 <= min(drawn) <= max(drawn) < 1437
    # Another epoch and another seed are another order.
    assert batches[:per_epoch] != batches[per_epoch:]
    assert batches != whole["6"]

    for count, replicas in shares.items():
        for step, batch in enumerate(batches):
            joined = [index for replica in replicas for index in replica[step]]
            assert joined == batch, f"{count} replicas, step {step}"
    for step, batch in enumerate(batches):
        both = [*pairs[0][2 * step : 2 * step + 2], *pairs[1][2 * step : 2 * step + 2]]
        assert [index for share in both for index in share] == batch
        assert [len(share) for share in fed[step]] == [60, 60]
        assert fed[step][0] + fed[step][1] == batch


@pytest.mark.tensorflow
def test_gang_agrees_and_learns(gang: list[Rank]) -> None:
    last = [rank.records()[-1] for rank in gang]
    assert [record["phase"] for record in last] == ["done", "done"]
    assert re.fullmatch("[0-9a-f]{64}", last[0]["weights_sha256"])
    assert last[0]["weights_sha256"] == last[1]["weights_sha256"]
    assert last[0]["metrics"] == last[1]["metrics"]
    assert last[0]["metrics"]["test_accuracy"] >= 0.95
    assert f"epoch 30/30: loss {last[0]['loss']:.4f}" in gang[0].said()


@pytest.mark.tensorflow
def test_progress_tells_the_run(gang: list[Rank]) -> None:
    for rank in gang:
        records = rank.records()
        phases = list(dict.fromkeys(record["phase"] for record in records))
        assert phases == ["loading", "starting", "training", "evaluating", "saving", "done"]
        training = [record for record in records if record["phase"] == "training"]
        assert training[0]["step"] == 1
        steps = [record["step"] for record in training]
        assert steps == sorted(set(steps))
        for record in training:
            assert (record["steps"], record["epochs"]) == (330, 30)
            assert record["epoch"] == (record["step"] - 1) // 11 + 1
            assert record["loss"] > 0
            assert 0 <= record["metrics"]["accuracy"] <= 1
        assert all(record["examples_per_s"] > 0 for record in training[1:])
        assert records[-1]["step"] == 330


LOAD = """
import json, sys
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images, labels = images[::5].reshape(-1, 8, 8, 1) / 16, labels[::5]
models = [tf.keras.models.load_model(path) for path in sys.argv[1:]]
right = [float((m.predict(images, verbose=0).argmax(1) == labels).mean()) for m in models]
pairs = zip(*[m.get_weights() for m in models])
print("RESULT" + json.dumps([right, max(float(abs(a - b).max()) for a, b in pairs)]))
"""


@pytest.mark.tensorflow
def test_only_the_chief_leaves_files_and_one_rank_learns_the_same(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    left = [
        sorted(str(path.relative_to(rank.folder)) for path in rank.folder.rglob("*.*"))
        for rank in gang
    ]
    checkpoints = [
        f"checkpoints/ckpt-{step}.{end}"
        for step in (300, 330)
        for end in ("data-00000-of-00001", "index")
    ]
    assert left == [[*checkpoints, "model/model.keras"], []]

    # Another rhythm of calls and checkpoints must not matter, either.
    alone = start(tmp_path / "alone", "--steps-per-execution", "4")
    assert alone.end() == 0, alone.said()
    last, expected = alone.records()[-1], gang[0].records()[-1]
    assert last["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    assert last["metrics"] == pytest.approx(expected["metrics"], abs=1e-4)

    files = [str(rank.folder / "model/model.keras") for rank in (gang[0], alone)]
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    loaded = start(tmp_path / "load", *files, script=LOAD, variables=legacy)
    accuracies, difference = result_of(loaded)
    assert accuracies[0] == pytest.approx(expected["metrics"]["test_accuracy"])
    assert difference <= 1e-4


@pytest.mark.tensorflow
def test_evaluator_tests_the_checkpoints_it_sees(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    variables = {
        "TF_CONFIG": tf_config("evaluator", 0, worker=["localhost:1", "localhost:2"]),
        "TRAIN_CHECKPOINT_DIR": str(gang[0].folder / "checkpoints"),
    }
    evaluator = start(tmp_path / "evaluator", variables=variables)
    seen = evaluator.wait_for("evaluating")
    assert seen["step"] == 330
    assert seen["metrics"] == pytest.approx(gang[0].records()[-1]["metrics"], abs=1e-6)
    evaluator.process.send_signal(signal.SIGTERM)
    assert evaluator.end() == 0
    last = evaluator.records()[-1]
    assert (last["phase"], last["metrics"]) == ("done", seen["metrics"])


@pytest.mark.tensorflow
def test_evaluator_without_a_checkpoint_waits_until_it_is_ended(
    start: Start, tmp_path: Path
) -> None:
    variables = {"TF_CONFIG": tf_config("evaluator", 0, worker=["localhost:1", "localhost:2"])}
    evaluator = start(tmp_path / "evaluator", variables=variables)
    evaluator.wait_for("waiting")
    maps = Path(f"/proc/{evaluator.process.pid}/maps").read_text()
    assert "tensorflow" not in maps
    evaluator.process.send_signal(signal.SIGTERM)
    assert evaluator.end() == 0
    assert [r["phase"] for r in evaluator.records()] == ["loading", "waiting", "done"]


# ---------------------------------------------------------------------------------- failure


@pytest.mark.tensorflow
def test_sigterm_ends_a_rank_that_waits_for_another(start: Start, tmp_path: Path) -> None:
    first, second = start_gang(start, tmp_path, "--epochs", "1000000")
    second.wait_for("training")
    first.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # the other one now waits in a collective
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(timeout=PATIENCE) == 143
    first.process.send_signal(signal.SIGCONT)
    assert first.end() == 1
    assert "TrainingError: lost contact with worker-1: " in first.said()


@pytest.mark.tensorflow
def test_missing_rank_is_named(start: Start, tmp_path: Path) -> None:
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    variables = {
        "TF_CONFIG": tf_config("worker", 0, worker=addresses),
        "TRAIN_START_TIMEOUT": "1",
    }
    rank = start(tmp_path / "rank", variables=variables)
    assert rank.end() == 1
    assert "TrainingError: not there within the start timeout: worker-1\n" in rank.said()


PATCHED = """
import json, os
import worker
from host import digits, gang

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0
{patch}
worker.main()
"""


@pytest.mark.tensorflow
def test_different_weights_are_an_error(start: Start, tmp_path: Path) -> None:
    script = PATCHED.format(patch="gang.digest = lambda variables: bytes([index]) * 32")
    ranks = start_gang(start, tmp_path, "--epochs", "1", script=script)
    assert [rank.end() for rank in ranks] == [1, 1]
    for rank in ranks:
        assert "TrainingError: the final weights differ from those of worker-0: worker-1" in (
            rank.said()
        )
        assert not (rank.folder / "model").exists()


@pytest.mark.tensorflow
def test_loss_that_is_no_number_is_an_error(start: Start, tmp_path: Path) -> None:
    patch = """
build = digits.build_model

def build_broken(seed):
    model = build(seed)
    model.layers[-1].bias.assign([float("nan")] * digits.CLASSES)
    return model

digits.build_model = build_broken
"""
    rank = start(tmp_path / "nan", script=PATCHED.format(patch=patch))
    assert rank.end() == 1
    assert "TrainingError: the loss is nan after step 0" in rank.said()
