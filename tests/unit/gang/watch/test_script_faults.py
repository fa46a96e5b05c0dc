"""Faults of scripts that are known by their messages."""

from __future__ import annotations

import pytest

from tests.unit.gang.watch.made_up_views import ended, fallen
from train.gang.watch import script_faults
from train.gang.watch.views import is_secondary
from train.host import end_causes

#: A message for each fault, in order, and words from its remedy.
FAULTS = [
    (
        "AttributeError: partially initialized module 'tensorflow' has no attribute 'keras' (most "
        "likely due to a circular import)",
        "rename that file",
    ),
    ("ModuleNotFoundError: No module named 'horovod'", "tf.distribute, not horovod"),
    ("ModuleNotFoundError: No module named 'tensorflow.examples'", "has no such module"),
    ("ModuleNotFoundError: No module named 'tensorflow.keras.wrappers'", "train_job_keras"),
    ("ModuleNotFoundError: No module named 'tensorflow'", "run `<suggest setup tags=tensorflow>`"),
    ("ImportError: cannot import name 'np_utils' from 'keras.utils' (/v/keras)", "no such name"),
    (
        "AttributeError: module 'tensorflow' has no attribute 'Session'. Did you mean: 'version'?",
        "has no Session: the script was written for a different version",
    ),
    (
        "RuntimeError: Collective ops must be configured at program startup",
        "create the strategy first",
    ),
    (
        "tensorflow.python.framework.errors_impl.AbortedError: /job:worker/replica:0/task:0 "
        "unexpectedly tried to connect with a different incarnation. It has likely restarted.",
        "several processes claim to be the same rank",
    ),
    ("ValueError: Attempt to convert a value (PerReplica:{", "keep train_job_keras at 2"),
    ("KeyError: 'evaluator'", "do not create a multi-worker strategy in the evaluator"),
    (
        "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
        "end the process that holds the port",
    ),
    (
        "tensorflow.python.framework.errors_impl.NotFoundError: Found an unshardable source "
        "dataset: name: TensorSliceDataset/_1",
        "AutoShardPolicy.DATA",
    ),
    (
        "tensorflow.python.framework.errors_impl.NotFoundError: /m/variables_temp/part-00000-of-1; "
        "No such file or directory [Op:MergeV2Checkpoints]",
        "$TRAIN_MODEL_DIR",
    ),
    ("FileExistsError: [Errno 17] File exists: '/data/model'", "exist_ok=True"),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_faults_of_scripts_are_known_by_their_messages(number: int) -> None:
    message, words = FAULTS[number]
    matching = [fault for fault in script_faults.FAULTS if fault.message.search(message)]
    assert matching[0] is script_faults.FAULTS[number], "each fault has its own row"
    for owner in ("", "in a child process: "):
        failed = ended(end_causes.EXIT, 1, f"exited with code 1: {owner}{message}")
        assert words in failed.remedy
        assert not failed.again
    # Otherwise, ranks that only lost this one would be blamed.
    reason = f"exited with code 1: {message}"
    assert not is_secondary(fallen("worker-1", "UnavailableError: Socket closed", reason=reason))


def test_every_known_fault_has_a_row() -> None:
    assert len(FAULTS) == len(script_faults.FAULTS)
