"""Who is named when a rank of a real gang leaves, and what becomes of one that starts slowly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import write_script
from tests.support.lab import Lab

#: Ranks with different numbers of steps, each a collective.
UNEQUAL = """\
import json, os, sys
import tensorflow as tf
own = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    context = tf.distribute.get_replica_context
    return strategy.run(lambda: context().all_reduce("sum", tf.constant(1.0)))
for number in range(1, int(sys.argv[1 + own]) + 1):
    step()
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        stream.write(json.dumps({"phase": "training", "step": number, "steps": 8}) + "\\n")
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_with_fewer_steps_is_named_and_not_the_one_that_lost_it(
    lab: Lab, tmp_path: Path, leaver: int
) -> None:
    steps = ["8", "8"]
    steps[leaver] = "5"
    variables = {"train_job_max_restarts": 3, "train_job_restart_delay": 0}
    script = write_script(tmp_path, UNEQUAL)
    run = lab.run("--job", "unequal", "--script", script, arguments=steps, **variables)
    assert run.code == 1, run.result
    saved, message = lab.saved("unequal"), run.result["message"]
    assert (saved["root_cause"], saved["cause"]) == (f"worker-{leaver}", "left"), message
    assert saved["attempts"] == 1, message
    assert "left after step 5 of 8 while the others trained on" in message
    assert "not started again: it would fail in the same way again" in message
