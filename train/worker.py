"""Trains a small network on scikit-learn's digits, on one process or on a gang of them.

Alone:

    python train/worker.py

Two workers on one machine, each in a terminal of its own:

    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 0}}' python train/worker.py
    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 1}}' python train/worker.py

An evaluator that tests the chief's checkpoints while the others train, in the same folder or with
the same --checkpoint-dir; it ends with Ctrl-C or SIGTERM:

    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "evaluator", "index": 0}}' python train/worker.py

Only check the options against TF_CONFIG, without TensorFlow:

    python train/worker.py --batch-size 96 --check

The chief (the task of type chief, or else worker 0) leaves ``model.keras`` in the model folder,
for ``tf.keras.models.load_model``, and its last two checkpoints in the checkpoint folder. Keras 2
(tf-keras) is used unless TF_USE_LEGACY_KERAS is 0; load the model with the same generation.

Exit codes: 0 done; 1 failed; 2 wrong options or TF_CONFIG; 128 + the number of the signal, such as
143 for SIGTERM, after a signal.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Nothing here imports TensorFlow: options are to be checked within a tenth of a second.
from host.cluster import Cluster, ConfigError, TrainingError, read_tf_config
from host.digits import MAX_SEED, TRAIN_EXAMPLES
from host.options import folder, number, option, parse, whole
from host.records import (
    ENV_CHECKPOINT_DIR,
    ENV_GRPC,
    ENV_MODEL_DIR,
    ENV_SEED,
    ENV_START_TIMEOUT,
    GRPC_OPTIONS,
    ProgressWriter,
)

MOMENTUM = 0.9
CHECKPOINTS_KEPT = 2
MODEL_FILE = "model.keras"


# ---------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """The options of a run; they must be the same for all ranks of a gang."""

    # The defaults reach a test accuracy of 0.98 within a few seconds of training.
    epochs: int = option(
        30,
        whole(1, 1_000_000),
        f"rounds through the {TRAIN_EXAMPLES} examples, in full batches only",
        group="learning",
    )
    # 120 can be shared evenly by 1 to 6, 8, 10 and 12 replicas.
    batch_size: int = option(
        120,
        whole(1, TRAIN_EXAMPLES),
        "examples in a step over all replicas, which share them evenly",
        group="learning",
    )
    learning_rate: float = option(
        0.1, number(1e-9, 1e3), f"of gradient descent with momentum {MOMENTUM}", group="learning"
    )
    seed: int = option(
        0,
        whole(0, MAX_SEED),
        "of the first weights and of the order of the examples",
        group="learning",
        variable=ENV_SEED,
    )
    # More steps in a call are faster, up to about 50; checkpoints and epochs end a call early.
    steps_per_execution: int = option(
        10, whole(1, 1_000_000), "steps in one call into TensorFlow", group="speed and safety"
    )
    checkpoint_every: int = option(
        0,
        whole(0, 1_000_000_000),
        "steps from one checkpoint to the next; 0: one at the end",
        group="speed and safety",
    )
    start_timeout: float = option(
        120.0,
        number(1, 1_000_000),
        "seconds to wait for the other ranks at the start",
        group="speed and safety",
        variable=ENV_START_TIMEOUT,
    )
    checkpoint_dir: Path = option(  # noqa: RUF009 - it returns a field, and a path is immutable
        Path("checkpoints"),
        folder,
        f"folder of the last {CHECKPOINTS_KEPT} checkpoints",
        group="results",
        variable=ENV_CHECKPOINT_DIR,
    )
    model_dir: Path = option(  # noqa: RUF009
        Path("model"),
        folder,
        f"folder of the trained model, {MODEL_FILE}",
        group="results",
        variable=ENV_MODEL_DIR,
    )


def check_batch_size(batch_size: int, replicas: int) -> None:
    """Raise ConfigError unless ``replicas`` can share a global batch of ``batch_size`` evenly."""
    if batch_size % replicas:
        below, above = batch_size // replicas * replicas, -(-batch_size // replicas) * replicas
        fits = " or ".join(str(size) for size in (below, above) if 0 < size <= TRAIN_EXAMPLES)
        raise ConfigError(
            f"--batch-size {batch_size} (global) cannot be shared evenly by {replicas} replicas; "
            + (f"take {fits}" if fits else f"the limit is {TRAIN_EXAMPLES} replicas")
        )


def check(settings: Settings, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster of TF_CONFIG, for which the settings hold as far as can be told here.

    Raises:
        ConfigError: TF_CONFIG is wrong, or the global batch cannot be shared by its ranks.
    """
    cluster = read_tf_config(environ)
    # On CPUs a rank has one replica. GPUs are counted once TensorFlow has found them.
    check_batch_size(settings.batch_size, max(1, len(cluster.ranks)))
    return cluster


# ---------------------------------------------------------------------------------- the run


def run(settings: Settings) -> dict[str, Any]:
    """Train as ``settings`` and TF_CONFIG say; once in a process, in its main thread.

    Returns:
        ``steps``, how many were made; ``loss``, its mean over the last epoch; ``metrics`` with
        ``test_accuracy`` and ``test_loss``; ``weights_sha256`` of the final weights. In an
        evaluator it does not return: it ends the process.

    Raises:
        ConfigError: the settings do not hold for this gang.
        TrainingError: another rank was lost or differs, or the loss is no longer a number.
    """
    progress = ProgressWriter()
    progress.write("loading", force=True)
    cluster = check(settings, os.environ)
    # Keras 2 by default, as for the scripts of users; this program works with Keras 3, too.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault(ENV_GRPC, GRPC_OPTIONS)
    if cluster.is_evaluator:
        from host.sidecar import evaluate_checkpoints

        evaluate_checkpoints(settings.checkpoint_dir, settings.seed, progress)

    from host import gang

    with gang.losses_named(cluster):
        return train(settings, cluster, progress)


def train(settings: Settings, cluster: Cluster, progress: ProgressWriter) -> dict[str, Any]:
    """Train as a rank of ``cluster``; see ``run``."""
    import tensorflow as tf
    from host import digits, gang
    from host.outputs import Outputs
    from host.reports import Reporter
    from host.steps import make_execution

    # The gang. From here on, all ranks do the same in the same order.
    progress.write("starting")
    strategy = gang.make_strategy(cluster, settings.start_timeout)
    gang.end_on_signals()
    replicas = strategy.num_replicas_in_sync
    check_batch_size(settings.batch_size, replicas)
    print(f"{cluster.task}: replicas {replicas}, TensorFlow {tf.__version__}", flush=True)

    # The data, the model, and what becomes of them.
    examples, test_examples = digits.load()
    batches = iter(digits.distribute(strategy, examples, settings.seed, settings.batch_size))
    tf.keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = digits.build_model(settings.seed)
        optimizer = tf.keras.optimizers.SGD(settings.learning_rate, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)
    execute = make_execution(strategy, model, optimizer, settings.batch_size)
    test = digits.make_test(model, test_examples)
    per_epoch = digits.steps_per_epoch(settings.batch_size)
    plan: dict[str, Any] = {"steps": settings.epochs * per_epoch, "epochs": settings.epochs}
    report = Reporter(progress, settings.batch_size, plan, aloud=cluster.is_chief)
    saved = {"model": model, "optimizer": optimizer}
    model_file = settings.model_dir / MODEL_FILE

    with Outputs(cluster, settings.checkpoint_dir, model_file, CHECKPOINTS_KEPT, saved) as outputs:
        step = 0
        for epoch in range(1, settings.epochs + 1):
            epoch_loss = 0.0
            while step < epoch * per_epoch:
                count = steps_to_make(step, per_epoch, settings)
                loss, accuracy = execute(batches, count)
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"the loss is {loss} after step {step}: lower --learning-rate"
                    )
                step += count
                epoch_loss += loss * count / per_epoch
                report.training(step, epoch, loss, accuracy)
                if settings.checkpoint_every and step % settings.checkpoint_every == 0:
                    outputs.checkpoint(step)
            report.evaluating(step, epoch, epoch_loss)
            metrics = test()
            report.evaluated(epoch, epoch_loss, metrics)

        # The end: one result everywhere, its files, and a last meeting, because TensorFlow takes
        # a rank that ends before the others for a dead one.
        results = {**plan, "step": step, "epoch": epoch, "loss": epoch_loss, "metrics": metrics}
        progress.write("saving", **results)
        weights = gang.digest(model.trainable_variables + model.non_trainable_variables)
        gang.compare(strategy, cluster, weights)
        outputs.checkpoint(step)
        outputs.model(model)
        gang.barrier(strategy)
    results["weights_sha256"] = weights.hex()
    progress.write("done", force=True, **results)
    print(f"{cluster.task}: done, SHA-256 of the weights {weights.hex()}", flush=True)
    return results


def steps_to_make(step: int, per_epoch: int, settings: Settings) -> int:
    """Return how many steps to make at once after ``step``: not past an epoch or a checkpoint."""
    if step == 0:
        return 1  # so that the first one is told at once
    ends = [step + settings.steps_per_execution, (step // per_epoch + 1) * per_epoch]
    if settings.checkpoint_every:
        ends.append((step // settings.checkpoint_every + 1) * settings.checkpoint_every)
    return min(ends) - step


def main() -> None:
    """Run the command line, and end the process."""
    settings, only_check = parse(Settings, "Trains a small network on handwritten digits.")
    code = 0
    try:
        if only_check:
            check(settings, os.environ)
        else:
            run(settings)
    except ConfigError as error:
        print(f"worker.py: error: {error}", file=sys.stderr)
        code = 2
    except TrainingError as error:
        print(f"TrainingError: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception:
        traceback.print_exc()
        code = 1
    # Not sys.exit: after a failure TensorFlow's teardown waits up to 40 s for the other ranks.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
