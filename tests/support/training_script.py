"""Runs code of the training program under TensorFlow, in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY
from tests.support.tensorflow_forks import forks

TRAIN = REPOSITORY / "train"
#: Seconds after which a script is given up.
PATIENCE = 240


def result_of(
    python: str, script: str, *arguments: str, keras: int = 2, project: bool = True
) -> Any:
    """Return what a script prints after the word RESULT, as JSON.

    Args:
        python: the interpreter with TensorFlow.
        arguments: the script's.
        keras: the generation that ``tf.keras`` is: 2 or 3.
        project: the script can import the training program.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TRAIN_", "PYTHON"))}
    legacy = {"TF_USE_LEGACY_KERAS": str(int(keras == 2)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment = {**kept, **legacy, **({"PYTHONPATH": str(TRAIN)} if project else {})}
    done = forks(python, keras).run(script, arguments, environment, Path("/"), PATIENCE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULT")[2].splitlines()[0])
