"""The options of the training program: an invalid value for each, and contradictions."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lab import clean_environment, run
from tests.support.training_ranks import PATIENCE, TRAIN, WORKER, tf_config

#: Returns the exit code, the output and the errors of a check of options.
Check = Callable[..., tuple[Any, str, str]]
#: Returns the one line with which options are rejected.
Refused = Callable[..., str]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs main() without TensorFlow and numpy."""
    for name in ("tensorflow", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.syspath_prepend(TRAIN)
    monkeypatch.setattr(os, "_exit", sys.exit)
    worker = importlib.import_module("worker")

    def run_main(*arguments: str, **variables: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["worker.py", *arguments, "--check"])
        monkeypatch.setattr(os, "environ", clean_environment(COLUMNS="80", **variables))
        with pytest.raises(SystemExit) as ended:
            worker.main()
        return (ended.value.code, *capsys.readouterr())

    return run_main


@pytest.fixture
def refused(check: Check) -> Refused:
    def last_line(*arguments: str, **variables: str) -> str:
        code, output, errors = check(*arguments, **variables)
        assert (code, output, errors.count("\n")) == (2, "", 1)
        name, line = errors.split(": error: ", 1)
        assert name == "worker.py"
        return line

    return last_line


#: Options, a value that is invalid for all of them, and a part of the resulting error.
BAD_VALUES = [
    ("--data", "digit", "'digit' is not one of digits, "),
    ("--data", "tfds:", "'tfds:' is not one of digits, "),
    ("--data", "tfds:a b", "'tfds:a b' is not one of digits, "),
    ("--data", "mine.py", "no such file: 'mine.py' in "),
    ("--model", "keras:../x", "'keras:../x' is not one of auto, digits-cnn, "),
    ("--model", "resnet57", "'resnet57' is not one of auto, digits-cnn, "),
    ("--data-dir --model-dir --tensorboard-dir", str(WORKER), "is not a folder"),
    ("--checkpoint-dir", "", "'' is not a folder"),
    ("--image-size --intra-op-threads --inter-op-threads", "4097", "from 0 to 4096"),
    ("--examples --batch-size", "0", "from 1 to 10000000"),
    ("--base-batch-size", "-1", "from 0 to 10000000"),
    ("--augment", "flip", "'flip' is not one of none, crop-flip"),
    ("--dropout", "1", "from 0 to 0.95"),
    ("--epochs --steps-per-execution", "0", "'0' is not a whole number from 1 to 1000000"),
    ("--epochs", "1.5", "'1.5' is not a whole number"),
    ("--top-k --patience --evaluate-every", "-1", "from 0 to 1000000"),
    ("--warmup-steps --checkpoint-every --summary-every", "-1", "from 0 to 1000000000"),
    ("--seed", "-1", "from 0 to 1000000000"),
    ("--accumulate", "0", "from 1 to 1024"),
    ("--checkpoints-kept", "0", "from 1 to 10000"),
    ("--optimizer", "lamb", "'lamb' is not one of sgd, adam, adamw"),
    ("--clip-norm --min-delta", "-0.1", "from 0 to 1e+09"),
    ("--label-smoothing", "1", "from 0 to 0.99"),
    ("--class-weights", "1,x", "'x' is not a number from 0 to 1e+06"),
    ("--ema", "1", "from 0 to 0.999999"),
    ("--normalize", "mean", "'mean' is not one of none, pixel-mean, imagenet"),
    ("--precision --exchange-precision", "int8", "'int8' is not one of float32, bfloat16, float16"),
    ("--momentum", "1", "from 0 to 0.9999"),
    ("--weight-decay", "-1", "from 0 to 1"),
    ("--learning-rate", "0", "from 1e-09 to 1000"),
    ("--learning-rate", "nan", "'nan' is not a number"),
    ("--learning-rate", "fast", "'fast' is not a number"),
    ("--schedule", "linear", "'linear' is not one of constant, cosine, steps"),
    ("--milestones", "200,100", "'200,100' is not an increasing list"),
    ("--milestones", "1e3", "'1e3' is not an increasing list"),
    ("--decay", "0", "from 1e-06 to 1"),
    ("--strategy", "tpu", "'tpu' is not one of auto, one-device, mirrored, "),
    ("--devices", "gpu:0,cpu:0", "of different devices of the same kind"),
    ("--devices", "gpu:1,gpu:1", "of different devices of the same kind"),
    ("--devices", "tpu:0", "is not a list such as gpu:0,gpu:1"),
    ("--communication", "mpi", "'mpi' is not one of auto, ring, nccl"),
    ("--checkpoint-seconds", "-1", "from 0 to 1e+07"),
    ("--resume", "yes", "'yes' is not one of auto, never, required"),
    ("--start-timeout", "inf", "'inf' is not a number from 1 to"),
    ("--export", "onnx", "'onnx' is not one of keras, saved-model, both, none"),
]
BAD_OPTIONS = [
    (option, value, limit) for options, value, limit in BAD_VALUES for option in options.split()
]
#: Switches take no value: --xla, --no-xla.
SWITCHES = {"--download", "--sync-batch-norm", "--memory-growth", "--xla", "--deterministic"}


@pytest.mark.parametrize(("option", "value", "limit"), BAD_OPTIONS)
def test_bad_value_shows_its_limit(option: str, value: str, limit: str, refused: Refused) -> None:
    line = refused(f"{option}={value}")
    assert line.startswith(f"argument {option}: ")
    assert limit in line


def test_help_is_grouped_and_bad_values_cover_every_option(check: Check) -> None:
    code, output, _ = check("--help")
    lines = output.splitlines()
    assert (code, max(map(len, lines)) <= 80) == (0, True)
    headings = " ".join(line for line in lines if re.fullmatch(r"[a-z ]+:", line))
    assert headings == (
        "options: data and model: learning: learning rate: devices and strategy: speed: "
        "checkpoints and limits: results:"
    )
    offered = set(re.findall(r"^  (--[a-z-]+)", output, re.MULTILINE))
    # Any text may be a path on the chief's host, which is where the path is used.
    checked = offered - {"--check", "--init-from"} - SWITCHES
    assert checked == {option for option, _, _ in BAD_OPTIONS}
    assert offered > SWITCHES


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_switch_with_a_value_is_an_error(switch: str, refused: Refused) -> None:
    line = refused(f"{switch}=yes")
    assert line.startswith(f"argument {switch}/--no-{switch[2:]}: ")
    assert line.endswith("'yes'\n")


GANG = tf_config("worker", 0, worker=["a:1", "b:1"])
SERVERS = tf_config("chief", 0, chief=["a:1"], worker=["b:1"], ps=["c:1"])
THREE = ["a:1", "b:1", "c:1"]

#: Options, TF_CONFIG, and a part of the resulting error.
REFUSALS = [
    ("--epoch=3", "", "--epoch=3"),
    ("--nope", "", "--nope"),
    ("extra", "", "extra"),
    ("--download", "", "--download is supported for mnist, fashion-mnist, cifar10, but not for d"),
    (
        "--download --data=npz",
        "",
        "--download is supported for mnist, fashion-mnist, cifar10, but not for n",
    ),
    ("--schedule=steps", "", "--schedule steps needs --milestones"),
    ("--milestones=5,9", "", "--milestones has no effect with --schedule constant"),
    ("--accumulate=2 --sync-batch-norm", "", "--accumulate computes each part separately, "),
    ("--xla --sync-batch-norm", "", "--xla cannot compile communication between replicas"),
    (
        "--strategy=one-device --devices=gpu:0,gpu:1",
        "",
        "one-device uses one device, but --devices lists",
    ),
    ("--strategy=parameter-server", "", "it needs chief, worker and ps"),
    ("--strategy=mirrored", GANG, "does not fit TF_CONFIG (worker: 2): use multi-worker"),
    ("--strategy=multi-worker", SERVERS, "use parameter-server or auto"),
    ("--devices=cpu:0,cpu:1", GANG, "with several workers, each trains on one CPU device"),
    ("--devices=cpu:0", SERVERS, "--devices has no effect with parameter servers"),
    ("--precision=float16", SERVERS, "--precision float16 needs loss scaling, which is"),
    ("--exchange-precision=bfloat16", SERVERS, "--exchange-precision has no effect with param"),
    ("--base-batch-size=1 --batch-size=10000000 --learning-rate=1", "", "the limit is 1e6"),
    ("--batch-size=12 --accumulate=8", "", "1 replicas in 8 parts each; use 8 or 16"),
    ("--batch-size=12 --devices=cpu:0,cpu:1,cpu:2,cpu:3,cpu:4", "", "use 10 or 15"),
    ("--batch-size=100", tf_config("worker", 2, worker=THREE), "--batch-size 100 (global) cannot"),
    ("--batch-size=100", tf_config("worker", 2, worker=THREE), "use 99 or 102"),
    ("--batch-size=1", GANG, "use 2"),
    ("", "{", "not JSON"),
    ("", "[]", "must be a JSON object"),
    ("", '{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}', "cluster.worker"),
    ("", '{"cluster": {"worker": ["a:1"]}}', "task must be an object such as"),
    ("", tf_config("worker", 2, worker=["a:1", "b:1"]), "worker-2 is not in the cluster"),
    ("", tf_config("chief", 0, chief=["a:1", "b:1"]), "2 chiefs"),
    ("", tf_config("worker", 0, worker=["a:1"], ps=["b:1"]), "servers (ps), but no chief"),
    ("", tf_config("chief", 0, chief=["a:1"], ps=["b:1"]), "servers (ps), but no worker"),
]


@pytest.mark.parametrize(("options", "config", "told"), REFUSALS)
def test_what_cannot_be_is_one_line(options: str, config: str, told: str, refused: Refused) -> None:
    assert told in refused(*options.split(), TF_CONFIG=config)


def test_bad_variables_are_named(refused: Refused) -> None:
    assert "train_job_keras at 2" in refused(TF_USE_LEGACY_KERAS="0")
    for name in ("TRAIN_SEED", "TRAIN_START_TIMEOUT"):
        assert f"environment variable {name}: 'soon'" in refused(**{name: "soon"})


@pytest.mark.parametrize(
    ("size", "config"),
    [
        ("100", tf_config("evaluator", 0, chief=["a:1"], worker=["b:1", "c:1"])),
        ("100", GANG),
        ("99", tf_config("worker", 0, chief=["a:1"], worker=["b:1", "c:1"])),
        ("7", ""),
    ],
)
def test_global_batch_that_divides_is_accepted(size: str, config: str, check: Check) -> None:
    assert check("--batch-size", size, TF_CONFIG=config) == (0, "", "")


@pytest.mark.parametrize(("name", "code"), [("tfds:mnist:3.0.1", 0), ("mnits", 2)])
def test_the_exit_code_is_that_of_the_process(name: str, code: int) -> None:
    words = [sys.executable, str(WORKER), "--data", name, "--check"]
    done = run(*words, env=clean_environment(), timeout=PATIENCE)
    assert (done.returncode, done.stdout, bool(done.stderr)) == (code, "", bool(code))
