"""The options of a run: their limits, ``--help``, and contradictions.

This module uses only the standard library, because options are also checked on hosts without
TensorFlow.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from host import rank_environment

from . import data
from .cluster import Cluster, ConfigError, read_tf_config

#: Every part of TensorFlow accepts seeds of 31 bits.
MAX_SEED = 1_000_000_000
MAX_STEPS = 1_000_000_000
#: The version of the rule in order.py: other versions give the same steps different examples.
ORDER = 2
STRATEGIES = ("auto", "one-device", "mirrored", "multi-worker", "parameter-server")
MODELS = ("digits-cnn", "mnist-cnn", *(f"resnet{n}" for n in (20, 32, 44, 56, 110)), "linear")

#: The headings of ``--help``, by the first option below each.
GROUPS = {
    "data": "data and model",
    "epochs": "learning",
    "learning_rate": "learning rate",
    "strategy": "devices and strategy",
    "steps_per_execution": "speed",
    "checkpoint_dir": "checkpoints and limits",
    "evaluate_every": "results",
}
#: Environment variables that replace defaults if they are set and not empty.
VARIABLES = {
    "seed": rank_environment.ENV_SEED,
    "checkpoint_dir": rank_environment.ENV_CHECKPOINT_DIR,
    "start_timeout": rank_environment.ENV_START_TIMEOUT,
    "model_dir": rank_environment.ENV_MODEL_DIR,
    "tensorboard_dir": rank_environment.ENV_TENSORBOARD_DIR,
}


def option(help: str, default: Any, convert: Callable[[str], Any]) -> Any:
    """Return a dataclass field for an option with a value.

    ``convert`` turns the option's text into the value. It may raise argparse.ArgumentTypeError.
    """
    return dataclasses.field(default=default, metadata={"convert": convert, "help": help})


def switch(help: str, *, default: bool = False) -> Any:
    """Return an option that is on or off: ``--xla`` and ``--no-xla``, without a value."""
    return option(help, default, bool)


def whole(help: str, low: int, high: int, *, default: int = 0) -> Any:
    """Return an option for a whole number from ``low`` to ``high``, inclusive."""

    def convert(text: str) -> int:
        if text.isascii() and text.isdigit() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")

    return option(help, default, convert)


def number(help: str, low: float, high: float, *, default: float = 0.0) -> Any:
    """Return an option for a number from ``low`` to ``high``, inclusive."""
    return option(help, default, partial(to_number, low=low, high=high))


def to_number(text: str, low: float, high: float) -> float:
    """Convert text to a number from ``low`` to ``high``."""
    with suppress(ValueError):
        if low <= float(text) <= high:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")


def one_of(help: str, names: Sequence[str], pattern: str = "") -> Any:
    """Return an option whose value is one of ``names``. The first of them is the default.

    If there is a ``pattern``, the value may also match it, or be the path of a Python file.
    """

    def convert(text: str) -> str:
        module = bool(pattern) and text.endswith(".py")
        fits = pattern and re.fullmatch(pattern, text)
        if text in names or fits or (module and Path(text).is_file()):
            return text
        if module:
            raise argparse.ArgumentTypeError(
                f"no such file: {text!r} in {Path.cwd()}; with the launcher, copy it to the hosts "
                "with --include"
            )
        more = " or a Python file" if pattern else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}{more}")

    return option(help, names[0], convert)


def folder(help: str, *, default: str) -> Any:
    """Return an option for the path of a folder, which need not exist yet."""

    def convert(text: str) -> Path:
        path = Path(text)
        if text and (path.is_dir() or not (path.is_symlink() or path.exists())):
            return path
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder that exists or can be created")

    return option(help, Path(default), convert)


def steps(text: str) -> tuple[int, ...]:
    """Return the step numbers in an increasing list such as ``32000,48000``; () for ''."""
    if re.fullmatch(r"[0-9]{1,12}(,[0-9]{1,12})*|", text):
        numbers = tuple(int(part) for part in text.split(",") if part)
        if list(numbers) == sorted(set(numbers)):
            return numbers
    raise argparse.ArgumentTypeError(f"{text!r} is not an increasing list such as 32000,48000")


def weights(text: str) -> tuple[float, ...]:
    """Return the weights in a list such as ``1,0.5,2``; () for ''."""
    return tuple(to_number(part, 0, 1e6) for part in text.split(",")) if text else ()


def devices(text: str) -> tuple[str, ...]:
    """Return the devices in a list such as ``gpu:0,gpu:1``, all of the same kind; () for ''."""
    parts = tuple(text.lower().split(",")) if text else ()
    one_kind = re.fullmatch(r"([gc]pu):[0-9]+(,\1:[0-9]+)*|", text.lower())
    if one_kind and len(set(parts)) == len(parts):
        return parts
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a list such as gpu:0,gpu:1 of different devices of the same kind"
    )


@dataclass(frozen=True)
class Settings:
    """The options of a run, which must be the same for all ranks of a gang."""

    data: str = one_of(
        f"the examples: {', '.join(data.NAMES)}, tfds:NAME from TensorFlow Datasets, or FILE.py "
        "with build_dataset()",
        (*data.NAMES, "tfds:NAME"),
        pattern=r"tfds:[A-Za-z0-9_./:*-]+",
    )
    model: str = one_of(
        f"the network: {', '.join(MODELS)}, keras:NAME of tf.keras.applications, or FILE.py "
        "with build_model(); auto chooses one that fits the data",
        ("auto", *MODELS, "keras:NAME"),
        pattern=r"keras:[^\W_]+",
    )
    data_dir: Path = folder(  # noqa: RUF009 - a path is immutable
        "folder of the data files", default="data"
    )
    download: bool = switch("download missing files of data sets that have an address")
    image_size: int = whole(
        "width and height in pixels to which the images of folders and TFRecords are scaled; 0: "
        "size of the first image",
        0,
        4096,
    )
    examples: int = whole("number of synthetic examples", 1, 10_000_000, default=10_000)
    augment: str = one_of(
        "image augmentation in training: crop-flip as in He et al. for CIFAR-10, "
        "resized-crop-flip as in Szegedy et al. for larger images",
        ("none", "crop-flip", "resized-crop-flip"),
    )
    normalize: str = one_of(
        "normalization of images: subtract the mean of each pixel over the training set "
        "(He et al.), or subtract ImageNet's mean of each color and divide by its "
        "standard deviation",
        ("none", "pixel-mean", "imagenet"),
    )
    dropout: float = number("dropout rate of the last layer's inputs in training", 0, 0.95)
    sync_batch_norm: bool = switch(
        "compute BatchNorm over the global batch, independently of the number of replicas"
    )

    # The defaults reach a test accuracy of 0.98 on the digits within a few seconds.
    epochs: int = whole(
        "passes over the training examples, in full batches only", 1, 1_000_000, default=30
    )
    # 1 to 6, 8, 10 and 12 replicas can share 120 evenly.
    batch_size: int = whole(
        "examples per step over all replicas, which share them evenly", 1, 10_000_000, default=120
    )
    accumulate: int = whole(
        "parts into which each replica splits its share of a step, to save memory",
        1,
        1024,
        default=1,
    )
    optimizer: str = one_of(
        "sgd (with momentum), adam or adamw; --model FILE.py may define another optimizer",
        ("sgd", "adam", "adamw"),
    )
    momentum: float = number("momentum of sgd", 0, 0.9999, default=0.9)
    weight_decay: float = number(
        "factor of the L2 penalty on kernels (He et al.: 1e-4); with adamw, of the weight "
        "decay of kernels",
        0,
        1,
    )
    clip_norm: float = number(
        "maximum global norm to which gradients are clipped; 0: no clipping", 0, 1e9
    )
    label_smoothing: float = number(
        "label smoothing: share of a label that is spread over all classes in training", 0, 0.99
    )
    class_weights: tuple[float, ...] = option(
        "weights of classes 0, 1, ... in the training loss, such as 1,1,5", (), weights
    )
    ema: float = number(
        "momentum of a moving average of the weights, which is evaluated and saved; 0: none",
        0,
        0.999999,
    )
    init_from: str = option(
        "checkpoint or saved model on the chief's host from which weights are initialized, "
        "matched by layer name",
        "",
        str,
    )
    seed: int = whole(
        "seed for the initial weights, the order of examples and all other randomness", 0, MAX_SEED
    )
    patience: int = whole(
        "stop early after this many evaluations without a lower test loss, and keep the "
        "best weights; 0: never",
        0,
        1_000_000,
    )
    min_delta: float = number(
        "minimum decrease that counts as a lower test loss for --patience", 0, 1e9
    )

    learning_rate: float = number(
        "learning rate of the optimizer, after warm-up", 1e-9, 1e3, default=0.1
    )
    schedule: str = one_of(
        "learning rate schedule: cosine decays to 0 at the end, steps decays at each of "
        "--milestones",
        ("constant", "cosine", "steps"),
    )
    milestones: tuple[int, ...] = option(
        "steps at which the learning rate decays, such as 32000,48000", (), steps
    )
    decay: float = number(
        "factor applied to the learning rate at each milestone", 1e-6, 1, default=0.1
    )
    warmup_steps: int = whole(
        "number of steps in which the learning rate rises from 0", 0, MAX_STEPS
    )
    base_batch_size: int = whole(
        "batch size for which --learning-rate is meant; it is scaled by --batch-size; 0: "
        "not scaled",
        0,
        10_000_000,
    )

    strategy: str = one_of(
        f"strategy of tf.distribute: {', '.join(STRATEGIES)}; auto follows TF_CONFIG and "
        "the devices",
        STRATEGIES,
    )
    devices: tuple[str, ...] = option(
        "devices of this rank, such as gpu:0,gpu:1 or cpu:0,cpu:1 (by default all GPUs, or "
        "the CPU)",
        (),
        devices,
    )
    communication: str = one_of(
        "communication between workers: auto, ring, nccl", ("auto", "ring", "nccl")
    )
    memory_growth: bool = switch("allocate GPU memory as needed, not all at once", default=True)
    intra_op_threads: int = whole("threads per operation; 0: TensorFlow chooses", 0, 4096)
    inter_op_threads: int = whole("operations to run in parallel; 0: TensorFlow chooses", 0, 4096)

    # More steps per call are faster, up to about 50; checkpoints and epochs end a call early.
    steps_per_execution: int = whole("steps per call into TensorFlow", 1, 1_000_000, default=10)
    precision: str = one_of(
        "precision of the layers' arithmetic; variables stay float32",
        ("float32", "bfloat16", "float16"),
    )
    exchange_precision: str = one_of(
        "precision of gradients sent between workers; on CPUs, they are summed in float32",
        ("float32", "bfloat16", "float16"),
    )
    xla: bool = switch("compile loss and gradients with XLA")
    deterministic: bool = switch(
        "use only deterministic operations, which are slower on GPUs (on CPUs all "
        "operations are deterministic); the parts of a step's time are then not reported"
    )

    checkpoint_dir: Path = folder(  # noqa: RUF009
        "folder for the checkpoints, written by the chief; training resumes from the newest "
        "one that any rank has",
        default="checkpoints",
    )
    checkpoint_every: int = whole(
        "steps between checkpoints; 0: see --checkpoint-seconds", 0, MAX_STEPS
    )
    checkpoint_seconds: float = number(
        "seconds between checkpoints; 0: never",
        0,
        1e7,
        default=300.0,
    )
    checkpoints_kept: int = whole("number of newest checkpoints to keep", 1, 10_000, default=3)
    resume: str = one_of(
        "auto resumes from the newest checkpoint, never replaces existing checkpoints, "
        "required fails if there is none",
        ("auto", "never", "required"),
    )
    start_timeout: float = number(
        "seconds to wait for the other ranks at the start", 1, 1_000_000, default=120.0
    )

    evaluate_every: int = whole(
        "epochs between evaluations; 0: only at the end", 0, 1_000_000, default=1
    )
    model_dir: Path = folder(  # noqa: RUF009
        "folder for the trained model", default="model"
    )
    export: str = one_of(
        "format of the trained model: model.keras, a SavedModel in saved_model/, both or none",
        ("keras", "saved-model", "both", "none"),
    )
    tensorboard_dir: Path = folder(  # noqa: RUF009
        "folder of the chief's TensorBoard events", default="tensorboard"
    )
    top_k: int = whole(
        "also report how often the correct class is among the top K; 0: not reported", 0, 1_000_000
    )
    summary_every: int = whole(
        "steps between TensorBoard events; 0: only at evaluations", 0, MAX_STEPS
    )

    @property
    def scaled_rate(self) -> float:
        """The learning rate after the warm-up, scaled to the global batch size."""
        return self.learning_rate * self.batch_size / (self.base_batch_size or self.batch_size)

    @property
    def l2_penalty(self) -> float:
        """The factor of the L2 penalty; 0 for adamw, which decays the weights by itself."""
        return 0.0 if self.optimizer == "adamw" else self.weight_decay

    @property
    def identity(self) -> dict[str, object]:
        """The options, and ORDER, that must be the same in a checkpoint for a run to resume."""
        names = ("data", "model", "batch_size", "seed", "optimizer", "augment", "normalize")
        more = ("dropout", "ema", "sync_batch_norm", "precision", "exchange_precision")
        return {**{name: getattr(self, name) for name in (*names, *more)}, "order": ORDER}


class _SettingsParser(argparse.ArgumentParser):
    # Print one line only.
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(description: str) -> tuple[Settings, bool]:
    """Return the settings of this process's command line, and whether ``--check`` was given."""
    parser = _SettingsParser(description=description, allow_abbrev=False)
    group: Any = parser
    for field in dataclasses.fields(Settings):
        help, variable = field.metadata["help"], VARIABLES.get(field.name)
        convert, default = field.metadata["convert"], field.default
        if field.name in GROUPS:
            group = parser.add_argument_group(GROUPS[field.name])
        name = "--" + field.name.replace("_", "-")
        if isinstance(default, bool):
            help += f" (default: {'on' if default else 'off'})"
            action = argparse.BooleanOptionalAction
            group.add_argument(name, action=action, default=default, help=help)
            continue
        source = f"; from {variable} if set" if variable else ""
        if variable and os.environ.get(variable):
            try:
                default = convert(os.environ[variable])
            except argparse.ArgumentTypeError as error:
                parser.error(f"environment variable {variable}: {error}")
        # An empty default is not worth showing.
        stated = f" (default: {default}{source})" if str(default) else ""
        metavar = field.name.rpartition("_")[2].upper()
        stated = help + stated.replace("%", "%%")
        group.add_argument(name, type=convert, default=default, metavar=metavar, help=stated)
    help = "only check the options against TF_CONFIG; print nothing if they are valid"
    parser.add_argument("--check", action="store_true", help=help)
    values = vars(parser.parse_args())
    only_check = values.pop("check")
    return Settings(**values), only_check


def check_batch_size(settings: Settings, replicas: int) -> None:
    """Raise ConfigError unless ``replicas`` can divide a global batch into equal parts."""
    parts = replicas * settings.accumulate
    size = settings.batch_size
    if size % parts:
        fits = " or ".join(str(n) for n in (size // parts * parts, -(-size // parts) * parts) if n)
        each = f" in {settings.accumulate} parts each" if settings.accumulate > 1 else ""
        raise ConfigError(
            f"--batch-size {size} (global) cannot be divided evenly among {replicas} "
            f"replicas{each}; use {fits}"
        )


def choose_strategy(settings: Settings, cluster: Cluster) -> str:
    """Return the name of the strategy from TF_CONFIG and --strategy; ``auto`` if devices decide.

    Raise ConfigError if --strategy does not fit TF_CONFIG.
    """
    asked = settings.strategy
    if cluster.has_servers:
        found = "parameter-server"
    elif len(cluster.ranks) > 1:
        found = "multi-worker"
    else:
        found = asked if asked != "parameter-server" else "auto"
    if asked not in ("auto", found):
        there = ", ".join(f"{job}: {len(tasks)}" for job, tasks in cluster.addresses.items())
        raise ConfigError(
            f"--strategy {asked} does not fit TF_CONFIG ({there or 'no cluster'}): "
            + (f"use {found} or auto" if found != "auto" else "it needs chief, worker and ps")
        )
    return found


def check(settings: Settings, environ: Mapping[str, str]) -> Cluster:
    """Check the settings as far as possible without devices; return the cluster in TF_CONFIG.

    Raise ConfigError if they are invalid.
    """
    cluster = read_tf_config(environ)
    if environ.get("TF_USE_LEGACY_KERAS", "1") in ("0", "false", "False"):
        raise ConfigError(
            "TF_USE_LEGACY_KERAS is 0, but worker.py requires Keras 2 (tf-keras): unset "
            "it, or keep train_job_keras at 2"
        )
    if settings.download and settings.data in data.NAMES and settings.data not in data.FETCHED:
        raise ConfigError(
            f"--download is supported for {', '.join(data.FETCHED)}, but not for {settings.data}"
        )
    strategy = choose_strategy(settings, cluster)
    listed, count = ",".join(settings.devices), len(settings.devices)
    if strategy == "one-device" and count > 1:
        raise ConfigError(
            f"--strategy one-device uses one device, but --devices lists {listed}: list only one"
        )
    if strategy == "multi-worker" and count > 1 and listed.startswith("cpu"):
        why = "with several workers, each trains on one CPU device; remove --devices"
        raise ConfigError(f"--devices {listed}: {why}")
    if strategy == "parameter-server":
        if settings.devices:
            raise ConfigError("--devices has no effect with parameter servers: remove --devices")
        if settings.exchange_precision != "float32":
            raise ConfigError(
                "--exchange-precision has no effect with parameter servers: remove "
                "--exchange-precision"
            )
        if settings.precision == "float16":
            raise ConfigError(
                "--precision float16 needs loss scaling, which is not supported with "
                "parameter servers: use bfloat16"
            )
    if not cluster.is_evaluator:
        # Without --devices, GPUs are counted after TensorFlow has found them. With parameter
        # servers, the chief is alone.
        check_batch_size(settings, len(cluster.ranks) * max(1, count))
    if settings.xla and settings.sync_batch_norm:
        raise ConfigError(
            "--xla cannot compile communication between replicas: remove --sync-batch-norm"
        )
    if settings.accumulate > 1 and settings.sync_batch_norm:
        both = (
            "--accumulate computes each part separately, but --sync-batch-norm works on the "
            "whole batch"
        )
        raise ConfigError(f"{both}: use only one of these options")
    schedule = settings.schedule
    if schedule == "steps" and not settings.milestones:
        raise ConfigError("--schedule steps needs --milestones, such as 32000,48000")
    if schedule != "steps" and settings.milestones:
        raise ConfigError(
            f"--milestones has no effect with --schedule {schedule}: use --schedule steps"
        )
    if not math.isfinite(settings.scaled_rate) or settings.scaled_rate > 1e6:
        raise ConfigError(
            f"--learning-rate {settings.learning_rate} scaled by --batch-size over "
            f"--base-batch-size is {settings.scaled_rate:g}; the limit is 1e6"
        )
    return cluster
