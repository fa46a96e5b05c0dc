"""The rank at fault when a rank of a real gang leaves, and the handling of slow starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.jobs import write_script
from tests.support.lab import Lab, Labs, Run

#: Ranks with different numbers of steps, each of which is a collective.
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


@pytest.mark.soak
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
    assert "left after step 5 of 8 while the others kept training" in message
    assert "not restarted: it would fail the same way again" in message


#: A rank without TensorFlow. The rank with index 1 opens its port after a number of seconds, during
#: which it is active or inactive.
SLOW_START = """\
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
own, seconds, manner = config["task"]["index"], float(sys.argv[1]), sys.argv[2]
until = time.time() + (seconds if own == 1 or manner == "all" else 0)
while time.time() < until:
    time.sleep(0.5)
    if manner != "quiet":
        print("reads on", flush=True)
server = socket.create_server(("", int(config["cluster"]["worker"][own].rpartition(":")[2])))
time.sleep(60 if own == 0 and manner != "all" else 0)  # it waits for the other one
for step in range(1, 4):
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        stream.write(json.dumps({"phase": "training", "step": step, "steps": 3}) + "\\n")
    time.sleep(0.2)
"""


def slow_start(lab: Lab, folder: Path, *arguments: str, **variables: int) -> Run:
    script = write_script(folder, SLOW_START)
    words = ("--job", "slow", "--script", script)
    return lab.run(*words, arguments=list(arguments), **variables)


def test_a_rank_that_reads_data_before_it_opens_its_port_is_noticed_and_left_alone(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab = local_lab()
    run = slow_start(lab, tmp_path, "12", "all", train_job_start_idle_timeout=4)
    assert run.code == 0, run.result
    events = map(json.loads, (lab.runs_dir / "slow/events.jsonl").read_text().splitlines())
    texts = [event["notice"]["text"] for event in events if "notice" in event]
    for task in ("worker-0 (worker0)", "worker-1 (worker1)"):
        (text,) = [text for text in texts if text.startswith(f"{task} has not opened its port")]
        assert "but is active" in text


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        pytest.param(
            ("60", "quiet"),
            {"train_job_start_idle_timeout": 4},
            "used no CPU time, read no data and wrote no output (train_job_start_idle_timeout)",
            marks=pytest.mark.soak,
        ),
        (
            ("60", "busy"),
            {"train_job_start_idle_timeout": 3, "train_job_start_wait_timeout": 8},
            "did not open its port while others waited for 8 s (train_job_start_wait_timeout)",
        ),
        pytest.param(
            ("60", "busy"),
            {"train_job_start_timeout": 4},
            "within 4 s (train_job_start_timeout)",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["no sign of life", "others wait", "a hard limit"],
)
def test_a_rank_that_does_not_open_its_port_is_ended_at_a_limit(
    local_lab: Labs,
    tmp_path: Path,
    arguments: tuple[str, ...],
    variables: dict[str, int],
    words: str,
) -> None:
    lab = local_lab()
    run = slow_start(lab, tmp_path, *arguments, **variables)
    assert run.code == 1, run.result
    saved = lab.saved("slow")
    assert (saved["root_cause"], saved["cause"]) == ("worker-1", "start_timeout"), saved
    assert words in run.result["message"]
