"""Trains a network: on one process, on a gang of them, or with parameter servers.

Alone, on the handwritten digits that come with it:

    python train/worker.py

Two workers on one machine, each in a terminal of its own:

    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 0}}' python train/worker.py
    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 1}}' python train/worker.py

With ``ps`` in the cluster, the chief trains and the tasks of ``worker`` and ``ps`` serve it. A task
of type ``evaluator`` tests the chief's checkpoints while the others train, in the same folder or
with the same --checkpoint-dir.

Your own network and data, a Python file with build_model() and build_dataset():

    python train/worker.py --data mine.py --model mine.py

Only check the options against TF_CONFIG, without TensorFlow:

    python train/worker.py --batch-size 96 --check

The chief (the task of type chief, or else worker 0) leaves the model in the model folder and its
last checkpoints in the checkpoint folder. Started again with the same folder, the run resumes from
the newest one that any rank has: bit for bit with as many replicas, but for rounding with another
number of them. With TRAIN_CHECKPOINT_COPY=1 another rank than the chief writes checkpoints, too.
SIGTERM ends all ranks after a checkpoint of the same step. Keras 2 (tf-keras) is used: load the
model with it. More: docs/training.md.

Exit codes: 0 done; 1 failed; 2 wrong options or TF_CONFIG; 128 + the number of the signal, such as
143 for SIGTERM, after a signal.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

# Nothing here imports TensorFlow: options are to be checked within a tenth of a second.
from host.records import ENV_GRPC, GRPC_OPTIONS, ProgressWriter
from training.cluster import Cluster, ConfigError, Launch, TrainingError, read_launch
from training.settings import Settings, check, parse

#: What a training leaves behind, until the process ends: to free it takes TensorFlow seconds, and
#: longer where it lies on servers that have ended.
_KEPT: list[Any] = []


def run(settings: Settings) -> dict[str, Any]:
    """Train by ``settings`` and TF_CONFIG; once in a process, in its main thread.

    Returns:
        ``steps``, how many were planned, and ``step``, how many were made; ``loss``, its mean over
        the last epoch; ``metrics`` with ``test_accuracy`` and ``test_loss``; ``weights_sha256`` of
        the final weights. In an evaluator or a server it does not return: it ends the process.

    Raises:
        ConfigError: the settings do not hold for this gang, or data are missing.
        TrainingError: another rank was lost or differs, or the loss is no longer a number.
        training.loop.EndedError: a rank got SIGTERM; with the checkpoint that there is.
    """
    progress = ProgressWriter()
    progress.write("loading", force=True)
    cluster, launch = check(settings, os.environ), read_launch(os.environ)
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault(ENV_GRPC, GRPC_OPTIONS)
    if cluster.is_evaluator:
        from training.evaluator import evaluate_checkpoints

        evaluate_checkpoints(settings, progress)
    if cluster.is_server:
        from training.servers import serve

        serve(cluster, progress, settings.start_timeout)
        return {}

    from training.gang import named_peer_errors

    with named_peer_errors(cluster):
        return train(settings, cluster, launch, progress)


def train(
    settings: Settings, cluster: Cluster, launch: Launch, progress: ProgressWriter
) -> dict[str, Any]:
    """Train as a rank of ``cluster``; see ``run``."""
    import tensorflow as tf
    from training.loop import Loop, Summaries
    from training.parameter_servers import ParameterServers
    from training.signals import Signals
    from training.state import State
    from training.step import TrainStep
    from training.synchronous import Synchronous
    from training.task import make_optimizer, open_task

    # The gang. From here on, all ranks do the same in the same order.
    progress.write("starting")
    mode = (ParameterServers if cluster.has_servers else Synchronous)(settings, cluster)
    strategy, signals = mode.strategy, Signals()
    replicas = strategy.num_replicas_in_sync
    print(f"{cluster.task}: replicas {replicas}, TensorFlow {tf.__version__}", flush=True)

    # What learns, and how.
    task = open_task(settings)
    with strategy.scope():
        model = task.build_model()
        optimizer, schedule = make_optimizer(task, model)
    train_step = TrainStep(task, model, optimizer, mode.shares)
    state = State(strategy, model, optimizer, keeps_best=settings.patience > 0)
    evaluate = mode.evaluation(train_step, state)

    # The run, from its beginning or from the newest checkpoint.
    loop = Loop(
        settings, cluster, launch, task, mode.gang, state, evaluate, schedule, progress, signals
    )
    step = loop.resume()
    summaries = Summaries(settings.tensorboard_dir, cluster.is_chief, step)
    runner = mode.runner(train_step, step)
    _KEPT.append((mode, train_step, loop, runner))
    return loop.run(runner, summaries)


def main() -> None:
    """Run the command line, and end the process."""
    settings, only_check = parse("Trains a network on one process or a gang of them.")
    code, line = 0, ""
    try:
        if only_check:
            check(settings, os.environ)
        else:
            run(settings)
    except ConfigError as error:
        code, line = 2, f"worker.py: error: {error}"
    except TrainingError as error:
        code, line = 1, f"TrainingError: {error}"
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        line = traceback.format_exc().rstrip() if code == 1 else str(error)
    # Not sys.exit: after a failure TensorFlow's teardown waits up to 40 s for the other ranks, and
    # the others for this one. A full disk takes no last words.
    try:
        if line:
            print(line, file=sys.stderr if code in (1, 2) else sys.stdout)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
