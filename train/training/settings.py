"""The options of a run: their limits, ``--help``, and what contradicts what.

Standard library only: options are checked where TensorFlow is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from host.records import (
    ENV_CHECKPOINT_DIR,
    ENV_MODEL_DIR,
    ENV_SEED,
    ENV_START_TIMEOUT,
    ENV_TENSORBOARD_DIR,
)

from . import data
from .cluster import Cluster, ConfigError, read_tf_config

#: Seeds of 31 bits are what every part of TensorFlow takes.
MAX_SEED = 1_000_000_000
MAX_STEPS = 1_000_000_000
#: The version of the rule in order.py: another one gives the same steps other examples.
ORDER = 2
STRATEGIES = ("auto", "one-device", "mirrored", "multi-worker", "parameter-server")
MODELS = ("digits-cnn", "mnist-cnn", *(f"resnet{n}" for n in (20, 32, 44, 56, 110)), "linear")

#: The headings of ``--help``, by the first option below each.
GROUPS = {
    "data": "what to learn",
    "epochs": "learning",
    "learning_rate": "learning rate",
    "strategy": "devices and strategy",
    "steps_per_execution": "speed",
    "checkpoint_dir": "checkpoints and limits",
    "evaluate_every": "results",
}
#: Environment variables that replace defaults, where they are set and not empty.
VARIABLES = {
    "seed": ENV_SEED,
    "checkpoint_dir": ENV_CHECKPOINT_DIR,
    "start_timeout": ENV_START_TIMEOUT,
    "model_dir": ENV_MODEL_DIR,
    "tensorboard_dir": ENV_TENSORBOARD_DIR,
}


#: An option's default, and what makes a value of a text or raises argparse.ArgumentTypeError.
Kind = tuple[Any, Callable[[str], Any]]


def option(kind: Kind, help: str) -> Any:
    """Return a dataclass field that is also an option: ``batch_size`` is ``--batch-size``.

    ``help`` is one phrase for ``--help``, which adds the default.
    """
    return dataclasses.field(default=kind[0], metadata={"convert": kind[1], "help": help})


def switch(default: bool) -> Kind:
    """Return what is on or off: ``--xla`` and ``--no-xla``, which take no text."""
    return default, bool


def whole(low: int, high: int, *, default: int = 0) -> Kind:
    """Return a whole number from ``low`` to ``high``, both included."""

    def convert(text: str) -> int:
        if text.isascii() and text.isdigit() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")

    return default, convert


def number(low: float, high: float, *, default: float = 0.0) -> Kind:
    """Return a number from ``low`` to ``high``, both included."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")

    return default, convert


def one_of(*names: str, pattern: str = "") -> Kind:
    """Return one of ``names``, by default the first; or what fits ``pattern``, or a Python file."""

    def convert(text: str) -> str:
        module = bool(pattern) and text.endswith(".py")
        fits = pattern and re.fullmatch(pattern, text)
        if text in names or fits or (module and Path(text).is_file()):
            return text
        if module:
            raise argparse.ArgumentTypeError(
                f"there is no file {text!r} in {Path.cwd()}; with the launcher, --include sends it"
            )
        more = ", and no Python file" if pattern else ""
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}{more}")

    return names[0], convert


def folder(default: str) -> Kind:
    """Return the path of a folder, which may be missing still."""

    def convert(text: str) -> Path:
        path = Path(text)
        if text and (path.is_dir() or not (path.is_symlink() or path.exists())):
            return path
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder, present or to be made")

    return Path(default), convert


def steps(text: str) -> tuple[int, ...]:
    """Return the step numbers of a list such as ``32000,48000``, which must rise; none for ''."""
    parts = text.split(",") if text else []
    if all(part.isascii() and part.isdigit() and len(part) < 13 for part in parts):
        numbers = tuple(int(part) for part in parts)
        if list(numbers) == sorted(set(numbers)):
            return numbers
    raise argparse.ArgumentTypeError(f"{text!r} is not a rising list such as 32000,48000")


def weights(text: str) -> tuple[float, ...]:
    """Return the weights of a list such as ``1,0.5,2``; none for ''."""
    _, convert = number(0, 1e6)
    return tuple(convert(part) for part in text.split(",")) if text else ()


def devices(text: str) -> tuple[str, ...]:
    """Return the devices of a list such as ``gpu:0,gpu:1``, all of one kind; none for ''."""
    parts = tuple(text.lower().split(",")) if text else ()
    kinds = {part.partition(":")[0] for part in parts}
    numbers = [part.partition(":")[2] for part in parts]
    right = kinds <= {"gpu", "cpu"} and all(n.isascii() and n.isdigit() for n in numbers)
    if right and len(kinds) < 2 and len(set(parts)) == len(parts):
        return parts
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a list such as gpu:0,gpu:1 of different devices of one kind"
    )


@dataclass(frozen=True)
class Settings:
    """The options of a run; they must be the same for all ranks of a gang."""

    data: str = option(
        one_of(*data.NAMES, "tfds:NAME", pattern=r"tfds:[A-Za-z0-9_./:*-]+"),
        f"the examples: {', '.join(data.NAMES)}, tfds:NAME of TensorFlow Datasets, or FILE.py with "
        "build_dataset()",
    )
    model: str = option(
        one_of("auto", *MODELS, "keras:NAME", pattern=r"keras:[^\W_]+"),
        f"the network: {', '.join(MODELS)}, keras:NAME of tf.keras.applications, or FILE.py "
        "with build_model(); auto takes one that fits the data",
    )
    data_dir: Path = option(  # noqa: RUF009 - it returns a field, and a path is immutable
        folder("data"), "folder of the data's files"
    )
    download: bool = option(switch(False), "fetch missing files of data sets that have an address")
    image_size: int = option(
        whole(0, 4096),
        "pixels of a side to which image folders and TFRecords are scaled; 0: as the first image",
    )
    examples: int = option(
        whole(1, 10_000_000, default=10_000), "how many synthetic examples there are"
    )
    augment: str = option(
        one_of("none", "crop-flip", "resized-crop-flip"),
        "what changes the images in training: crop-flip is that of He et al. for CIFAR-10, "
        "resized-crop-flip that of Szegedy et al. for larger images",
    )
    normalize: str = option(
        one_of("none", "pixel-mean", "imagenet"),
        "what is subtracted from images: the mean of each pixel over the training set (He et al.), "
        "or ImageNet's means of the colours, by whose deviations they are then divided",
    )
    dropout: float = option(number(0, 0.95), "part of the last layer's inputs left out in training")
    sync_batch_norm: bool = option(
        switch(False),
        "BatchNorm over the global batch, so that it does not depend on the number of replicas",
    )

    # The defaults reach a test accuracy of 0.98 on the digits within a few seconds.
    epochs: int = option(
        whole(1, 1_000_000, default=30), "rounds through the examples, in full batches only"
    )
    # 120 can be shared evenly by 1 to 6, 8, 10 and 12 replicas.
    batch_size: int = option(
        whole(1, 10_000_000, default=120),
        "examples in a step over all replicas, which share them evenly",
    )
    accumulate: int = option(
        whole(1, 1024, default=1),
        "parts into which a replica divides its share of a step, to save memory",
    )
    optimizer: str = option(
        one_of("sgd", "adam", "adamw"),
        "sgd (with momentum), adam or adamw; a --model FILE.py may bring its own",
    )
    momentum: float = option(number(0, 0.9999, default=0.9), "of sgd")
    weight_decay: float = option(
        number(0, 1),
        "factor of the L2 penalty on kernels (He et al.: 1e-4); with adamw of the decay of kernels",
    )
    clip_norm: float = option(
        number(0, 1e9), "what the global norm of a step's gradients is cut down to; 0: not"
    )
    label_smoothing: float = option(
        number(0, 0.99), "part of a label that is spread over all classes in training"
    )
    class_weights: tuple[float, ...] = option(
        ((), weights), "factors of the losses of classes 0, 1 and on in training, such as 1,1,5"
    )
    ema: float = option(
        number(0, 0.999999),
        "momentum of a moving average of the weights, which is tested and left; 0: none",
    )
    init_from: str = option(
        ("", str),
        "checkpoint or saved model, on the chief's host, whose weights a run begins with, by the "
        "layers' names",
    )
    seed: int = option(
        whole(0, MAX_SEED), "of the first weights, the order of the examples and all that is random"
    )
    patience: int = option(
        whole(0, 1_000_000),
        "end early after so many evaluations without a lower test loss, and leave the best "
        "weights; 0: never",
    )
    min_delta: float = option(
        number(0, 1e9), "what a lower test loss must be lower by, for --patience"
    )

    learning_rate: float = option(
        number(1e-9, 1e3, default=0.1), "of the optimizer, after the warm-up"
    )
    schedule: str = option(
        one_of("constant", "cosine", "steps"),
        "how the rate changes: cosine falls to 0 at the end, steps at each of --milestones",
    )
    milestones: tuple[int, ...] = option(
        ((), steps), "steps at which the rate falls, such as 32000,48000"
    )
    decay: float = option(
        number(1e-6, 1, default=0.1), "what the rate is multiplied by at each milestone"
    )
    warmup_steps: int = option(whole(0, MAX_STEPS), "steps in which the rate rises from 0")
    base_batch_size: int = option(
        whole(0, 10_000_000),
        "the batch size for which the rate is meant: it is scaled by --batch-size; 0: not scaled",
    )

    strategy: str = option(
        one_of(*STRATEGIES),
        f"of tf.distribute: {', '.join(STRATEGIES)}; auto follows TF_CONFIG and the devices",
    )
    devices: tuple[str, ...] = option(
        ((), devices),
        "devices of this rank, such as gpu:0,gpu:1 or cpu:0,cpu:1; by default all GPUs, or the CPU",
    )
    communication: str = option(one_of("auto", "ring", "nccl"), "among workers: auto, ring, nccl")
    memory_growth: bool = option(
        switch(True), "take a GPU's memory as it is needed, not all at once"
    )
    intra_op_threads: int = option(
        whole(0, 4096), "threads of one operation; 0: TensorFlow chooses"
    )
    inter_op_threads: int = option(whole(0, 4096), "operations at a time; 0: TensorFlow chooses")

    # More steps in a call are faster, up to about 50; checkpoints and epochs end a call early.
    steps_per_execution: int = option(
        whole(1, 1_000_000, default=10), "steps in one call into TensorFlow"
    )
    precision: str = option(
        one_of("float32", "bfloat16", "float16"),
        "of the layers' arithmetic; variables stay float32",
    )
    exchange_precision: str = option(
        one_of("float32", "bfloat16", "float16"),
        "in which gradients travel between workers; on CPUs, sums are made in float32",
    )
    xla: bool = option(switch(False), "compile loss and gradients with XLA")
    deterministic: bool = option(
        switch(False),
        "only operations that give the same bits again, slower on GPUs (on CPUs all do); the parts "
        "of a step's time are not reported then",
    )

    checkpoint_dir: Path = option(  # noqa: RUF009
        folder("checkpoints"),
        "folder of the checkpoints: the chief writes, and the newest that any rank has is read",
    )
    checkpoint_every: int = option(
        whole(0, MAX_STEPS),
        "steps from one checkpoint to the next; 0: by --checkpoint-seconds alone",
    )
    checkpoint_seconds: float = option(
        number(0, 1e7, default=300.0),
        "seconds from one checkpoint to the next, by the chief's clock; 0: never",
    )
    checkpoints_kept: int = option(
        whole(1, 10_000, default=3), "how many of the newest checkpoints are kept"
    )
    resume: str = option(
        one_of("auto", "never", "required"),
        "auto resumes from the newest checkpoint, never replaces what is there, required fails "
        "where there is none",
    )
    start_timeout: float = option(
        number(1, 1_000_000, default=120.0), "seconds to wait for the other ranks at the start"
    )

    evaluate_every: int = option(
        whole(0, 1_000_000, default=1), "epochs from one test to the next; 0: one at the end"
    )
    model_dir: Path = option(  # noqa: RUF009
        folder("model"), "folder of the trained model"
    )
    export: str = option(
        one_of("keras", "saved-model", "both", "none"),
        "form of the trained model: model.keras, a SavedModel in saved_model/, both or none",
    )
    tensorboard_dir: Path = option(  # noqa: RUF009
        folder("tensorboard"), "folder of the chief's TensorBoard events"
    )
    top_k: int = option(
        whole(0, 1_000_000), "also report how often the right class is among so many; 0: not"
    )
    summary_every: int = option(
        whole(0, MAX_STEPS), "steps from one TensorBoard event to the next; 0: at tests only"
    )

    @property
    def scaled_rate(self) -> float:
        """The learning rate after the warm-up, scaled to the global batch size."""
        return self.learning_rate * self.batch_size / (self.base_batch_size or self.batch_size)

    @property
    def l2_penalty(self) -> float:
        """The factor of the L2 penalty: adamw decays the weights by itself."""
        return 0.0 if self.optimizer == "adamw" else self.weight_decay

    @property
    def identity(self) -> dict[str, object]:
        """What a checkpoint must agree with for the run to resume from it: options, the order."""
        names = ("data", "model", "batch_size", "seed", "optimizer", "augment", "normalize")
        more = ("dropout", "ema", "sync_batch_norm", "precision", "exchange_precision")
        return {**{name: getattr(self, name) for name in (*names, *more)}, "order": ORDER}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(description: str) -> tuple[Settings, bool]:
    """Return the settings of this process's command line, and whether ``--check`` was given.

    Exits with code 2 and one line on standard error that names the wrong option or variable.
    """
    parser = _Parser(description=description, allow_abbrev=False)
    group: Any = parser
    for field in dataclasses.fields(Settings):
        help, variable = field.metadata["help"], VARIABLES.get(field.name)
        convert, default = field.metadata["convert"], field.default
        if field.name in GROUPS:
            group = parser.add_argument_group(GROUPS[field.name])
        name = "--" + field.name.replace("_", "-")
        if isinstance(default, bool):
            group.add_argument(
                name,
                action=argparse.BooleanOptionalAction,
                default=default,
                help=f"{help} (default: {'on' if default else 'off'})",
            )
            continue
        source = f"; from {variable} if set" if variable else ""
        if variable and os.environ.get(variable):
            try:
                default = convert(os.environ[variable])
            except argparse.ArgumentTypeError as error:
                parser.error(f"environment variable {variable}: {error}")
        # Nothing is to be read of an empty default.
        stated = f" (default: {default}{source})" if str(default) else ""
        metavar = field.name.rpartition("_")[2].upper()
        stated = help + stated.replace("%", "%%")
        group.add_argument(name, type=convert, default=default, metavar=metavar, help=stated)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check the options against TF_CONFIG: print nothing if they are right",
    )
    values = vars(parser.parse_args())
    only_check = values.pop("check")
    return Settings(**values), only_check


def check_batch_size(settings: Settings, replicas: int) -> None:
    """Raise ConfigError unless ``replicas`` can share a global batch evenly, in equal parts."""
    parts = replicas * settings.accumulate
    size = settings.batch_size
    if size % parts:
        fits = " or ".join(str(n) for n in (size // parts * parts, -(-size // parts) * parts) if n)
        each = f" in {settings.accumulate} parts each" if settings.accumulate > 1 else ""
        raise ConfigError(
            f"--batch-size {size} (global) cannot be shared evenly by {replicas} replicas{each}; "
            f"take {fits}"
        )


def choose_strategy(settings: Settings, cluster: Cluster) -> str:
    """Return the strategy's name as far as TF_CONFIG decides; ``auto`` where the devices decide."""
    asked, several = settings.strategy, len(cluster.ranks) > 1
    if cluster.has_servers:
        found = "parameter-server"
    elif several:
        found = "multi-worker"
    else:
        found = asked if asked != "parameter-server" else "auto"
    if asked not in ("auto", found):
        there = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.addresses.items())
        raise ConfigError(
            f"--strategy {asked} does not fit TF_CONFIG with {there or 'no cluster'}: "
            + (f"take {found} or auto" if found != "auto" else "it needs chief, worker and ps")
        )
    return found


def check(settings: Settings, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster of TF_CONFIG, for which the settings hold as far as can be known here."""
    cluster = read_tf_config(environ)
    if environ.get("TF_USE_LEGACY_KERAS", "1") in ("0", "false", "False"):
        raise ConfigError(
            "TF_USE_LEGACY_KERAS is 0, and worker.py is written for Keras 2 (tf-keras): leave it "
            "unset, or train_job_keras at 2"
        )
    if settings.download and settings.data in data.NAMES and settings.data not in data.FETCHED:
        raise ConfigError(f"--download fetches {', '.join(data.FETCHED)}, not {settings.data}")
    strategy = choose_strategy(settings, cluster)
    listed = ",".join(settings.devices)
    if strategy == "one-device" and len(settings.devices) > 1:
        raise ConfigError(f"--strategy one-device takes one of --devices {listed}")
    if strategy == "multi-worker" and len(settings.devices) > 1 and listed.startswith("cpu"):
        raise ConfigError(
            f"--devices {listed}: each of several workers trains on one CPU device; leave it out"
        )
    if strategy == "parameter-server":
        if settings.devices:
            raise ConfigError("--devices has no effect with parameter servers: leave it out")
        if settings.exchange_precision != "float32":
            raise ConfigError("--exchange-precision has no effect with parameter servers")
        if settings.precision == "float16":
            raise ConfigError(
                "--precision float16 scales the loss, which parameter servers do not: take bfloat16"
            )
        replicas = 1
    else:
        # Without --devices, GPUs are counted once TensorFlow has found them.
        replicas = max(1, len(cluster.ranks)) * max(1, len(settings.devices))
    if not cluster.is_evaluator:
        check_batch_size(settings, replicas)
    if settings.xla and settings.sync_batch_norm:
        raise ConfigError("--xla compiles no exchange among replicas: leave out --sync-batch-norm")
    if settings.accumulate > 1 and settings.sync_batch_norm:
        raise ConfigError(
            "--accumulate computes each part on its own, --sync-batch-norm over all: "
            "take one of them"
        )
    if settings.schedule == "steps" and not settings.milestones:
        raise ConfigError("--schedule steps needs --milestones, such as 32000,48000")
    if settings.milestones and settings.schedule != "steps":
        raise ConfigError(
            f"--milestones has no effect with --schedule {settings.schedule}: take steps"
        )
    if not math.isfinite(settings.scaled_rate) or settings.scaled_rate > 1e6:
        raise ConfigError(
            f"--learning-rate {settings.learning_rate} scaled by --batch-size over "
            f"--base-batch-size is {settings.scaled_rate:g}, the limit is 1e6"
        )
    return cluster
