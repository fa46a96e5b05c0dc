"""Trains a network in one process, on a gang of workers, or with parameter servers.

In one process, on the handwritten digits that are included:

    python train/worker.py

With two workers on one machine, each in its own terminal:

    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 0}}' python train/worker.py
    TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                "task": {"type": "worker", "index": 1}}' python train/worker.py

If the cluster has ``ps``, the chief trains, and the tasks of ``worker`` and ``ps`` serve it. A task
of type ``evaluator`` tests the chief's checkpoints during the training, in the same folder or with
the same --checkpoint-dir.

With your own network and data, a Python file with build_model() and build_dataset():

    python train/worker.py --data mine.py --model mine.py

To only check the options against TF_CONFIG, without TensorFlow:

    python train/worker.py --batch-size 96 --check

The chief (the task of type chief, or else worker 0) writes the model and the checkpoints. If the
program is started again with the same folder, the run resumes from the newest checkpoint of any
rank. After SIGTERM, all ranks end when a checkpoint is written. Keras 2 (tf-keras) is used. For
details and exit codes see docs/training.md.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from host.plain_text import note
from host.progress_records import ProgressWriter

# Nothing here imports TensorFlow, because options must be checked within a tenth of a second.
from host.rank_environment import ENV_GRPC, GRPC_OPTIONS
from training.cluster import ConfigError, TrainingError, read_launch
from training.results import Results
from training.settings import Settings, check, parse

#: Objects of a training, kept until the process ends: TensorFlow takes seconds to free them, and
#: longer if they are stored on servers that have ended.
_KEPT: list[Any] = []


def run(settings: Settings, progress: ProgressWriter | None = None) -> Results:
    """Train with ``settings`` and TF_CONFIG, and return the results.

    Call it once per process, in the main thread. The training writes its records to ``progress``,
    by default the launcher's file, and its other files to the paths in ``settings``. In an
    evaluator, SIGTERM and SIGINT end the process within this function.

    Raises:
        ConfigError: the settings are invalid for this gang, or data are missing or corrupt.
        TrainingError: the training failed. For example, another rank was lost or has different
            weights, or the loss is not finite.
        training.loop.EndedError: a rank got SIGTERM. The message reports what was saved.
    """
    progress = progress or ProgressWriter()
    progress.write("loading", force=True)
    cluster, launch = check(settings, os.environ), read_launch(os.environ)
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault(ENV_GRPC, GRPC_OPTIONS)
    if cluster.is_evaluator:
        from training.evaluator import evaluate_checkpoints

        return evaluate_checkpoints(cluster.task, settings, launch, progress)
    if cluster.is_server:
        from training.servers import serve

        serve(cluster, progress, settings.start_timeout)
        return Results(cluster.task)

    from training.gang import named_peer_errors
    from training.loop import Loop

    with named_peer_errors(cluster):
        loop = Loop(settings, cluster, launch, progress)
        _KEPT.append(loop)
        return loop.run()


def write_out(results: Results, progress: ProgressWriter) -> None:
    """Write the last progress record, and print the hash of the weights."""
    progress.write("done", force=True, **results.fields)
    if results.weights_sha256:
        line = f"{results.task}: done, SHA-256 of the weights {results.weights_sha256}"
        note(line, sys.stdout)


def main() -> None:
    """Run the command line and end the process."""
    settings, only_check = parse("Train a network in one process or in a gang of processes.")
    code, line = 0, ""
    try:
        if only_check:
            check(settings, os.environ)
        else:
            progress = ProgressWriter()
            write_out(run(settings, progress), progress)
    except ConfigError as error:
        code, line = 2, f"worker.py: error: {error}"
    except TrainingError as error:
        code, line = 1, f"TrainingError: {error}"
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        line = traceback.format_exc().rstrip() if code == 1 else str(error)
    # Not sys.exit: after a failure, TensorFlow's teardown makes the ranks wait up to 40 s for each
    # other. Output may fail on a full disk.
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
