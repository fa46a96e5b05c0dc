"""Runs code of the training program under TensorFlow, in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY
from tests.support.tensorflow_forks import forks
from tests.support.training_ranks import Rank

TRAIN = REPOSITORY / "train"
#: Seconds after which a script is given up.
PATIENCE = 240
#: What each script begins with.
PRELUDE = """
import json, sys
from pathlib import Path
import numpy as np
import tensorflow as tf

def done(result):
    print("RESULT" + json.dumps(result))
"""


def result_of(
    python: str, script: str, *arguments: str, keras: int = 2, project: bool = True
) -> Any:
    """Return what a script gives to ``done()``; it begins with PRELUDE.

    Args:
        python: the interpreter with TensorFlow.
        arguments: the script's.
        keras: the generation that ``tf.keras`` is: 2 or 3.
        project: the script can import the training program.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TRAIN_", "PYTHON"))}
    legacy = {"TF_USE_LEGACY_KERAS": str(int(keras == 2)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment = {**kept, **legacy, **({"PYTHONPATH": str(TRAIN)} if project else {})}
    done = forks(python, keras).run(PRELUDE + script, arguments, environment, Path("/"), PATIENCE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULT")[2].splitlines()[0])


SCALARS = """
found = []
for folder in sys.argv[1:]:
    found.append({})
    for path in sorted(Path(folder).glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                numbers = found[-1].setdefault(value.tag, {})
                numbers[event.step] = float(tf.make_ndarray(value.tensor))
done(found)
"""


def scalars(python: str, *ranks: Rank) -> list[dict[str, dict[int, float]]]:
    """Return what each rank has written for TensorBoard: by tag, by step."""
    folders = [str(rank.folder / "tensorboard") for rank in ranks]
    return [
        {tag: {int(step): number for step, number in of.items()} for tag, of in tags.items()}
        for tags in result_of(python, SCALARS, *folders)
    ]
