"""Known faults of scripts, identified by the exception's message, with their remedies.

docs/troubleshooting.md lists those related to TensorFlow.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from train.host.preflight import INSTALL


class ScriptFault(NamedTuple):
    """The message of an exception, and a remedy."""

    message: re.Pattern[str]
    remedy: str  # ``{name}`` is replaced by that group of the message; commands are markers


_OF_ANOTHER_VERSION = (
    "this version of TensorFlow has no {name}: the script was written for a different version"
)
_MIGRATE = " (https://www.tensorflow.org/guide/migrate)"
_ONE_PATH = (
    "several ranks wrote to the same path: let only the chief save, to $TRAIN_MODEL_DIR, and in "
    "every other rank to a separate folder (docs/your-script.md)"
)

#: Faults of scripts. The first match counts. None of them justifies another attempt.
FAULTS = (
    ScriptFault(
        re.compile(
            r"partially initialized module '(?P<name>\w+)|; '(?P<package>\w+)' is not a package"
        ),
        "a file of the script has the same name as a package and shadows it: rename that file",
    ),
    ScriptFault(
        re.compile(r"No module named '(?P<name>horovod|mpi4py)\b"),
        "this launcher supports tf.distribute, not {name}: use "
        "tf.distribute.MultiWorkerMirroredStrategy (docs/your-script.md)",
    ),
    ScriptFault(
        re.compile(
            r"No module named '(?P<name>tensorflow\.(?:contrib|examples|estimator)\b[\w.]*)"
        ),
        _OF_ANOTHER_VERSION.format(name="such module") + _MIGRATE,
    ),
    ScriptFault(
        re.compile(r"No module named '(?P<name>(?:tensorflow|keras|tf_keras)\.[\w.]+)"),
        _OF_ANOTHER_VERSION.format(name="such module")
        + ", or for the other Keras version (train_job_keras)",
    ),
    ScriptFault(
        re.compile(r"No module named '?tensorflow\b"),
        f"{INSTALL}, or set train_job_python to an interpreter with TensorFlow",
    ),
    ScriptFault(
        re.compile(
            r"cannot import name '(?P<name>\w+)' from '(?:tensorflow|keras|tf_keras)\b|"
            r"module '(?:keras|tf_keras|tensorflow(?:\.\w+)*\.keras)\b[\w.]*' has no attribute"
        ),
        _OF_ANOTHER_VERSION.format(name="such name")
        + ", or for the other Keras version (train_job_keras)",
    ),
    ScriptFault(
        re.compile(r"module 'tensorflow[\w.]*' has no attribute '(?P<name>\w+)'"),
        _OF_ANOTHER_VERSION + _MIGRATE,
    ),
    ScriptFault(
        re.compile(r"Collective ops must be configured at program startup"),
        "create the strategy first: a TensorFlow operation ran before it",
    ),
    ScriptFault(
        re.compile(
            r"tried to connect with a different incarnation|different device incarnation|"
            r"current incarnation doesn't match|[Dd]uplicate task|Inconsistent task|"
            r"[Ii]ncarnation ID mismatch"
        ),
        "several processes claim to be the same rank: do not change TF_CONFIG, and create only "
        "one strategy, in one process",
    ),
    ScriptFault(
        re.compile(r"convert a value \(PerReplica"),
        "keep train_job_keras at 2, or write a custom loop with strategy.run: `fit` of "
        "Keras 3 does not work with several workers (docs/your-script.md, Keras 2 and 3)",
    ),
    ScriptFault(
        re.compile(r"KeyError: 'evaluator'"),
        "do not create a multi-worker strategy in the evaluator, which is not part of the cluster",
    ),
    ScriptFault(
        re.compile(r"Could not start gRPC server|No address added out of total"),
        "end the process that holds the port, or choose another train_job_port; do not "
        "change TF_CONFIG",
    ),
    ScriptFault(
        re.compile(r"Found an unshardable source dataset"),
        "shard the data in the script, or set AutoShardPolicy.DATA",
    ),
    ScriptFault(
        re.compile(
            r"unable to lock file|MergeV2Checkpoints|_temp/part-\d+|\.data-\d{5}-of-\d{5}\S*[;:] "
            r"No such file"
        ),
        _ONE_PATH,
    ),
    ScriptFault(
        re.compile(r"FileExistsError: "),
        "another rank or an earlier attempt created this path: pass exist_ok=True, or save in "
        "the chief to $TRAIN_MODEL_DIR",
    ),
)


def known_fault(error: str) -> str:
    """Return the remedy for an error that is known to be the script's fault, or an empty string."""
    for fault in FAULTS:
        if found := fault.message.search(error):
            return fault.remedy.format(**found.groupdict())
    return ""
