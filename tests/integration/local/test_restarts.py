"""Further attempts: what is worth one, where it is told, and that it is the same job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.support.jobs import job_processes, plain, rank_pid, training
from tests.support.lab import Command, Lab

Labs = Callable[..., Lab]
QUICK: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.1}


def restarted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "restart"]


def test_a_killed_gang_is_started_again(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "shot", "--steps 400 --child --deaf --slow-attempts 1", **QUICK)
    command.wait_for(training)
    os.kill(rank_pid(lab.root, "shot", "worker-1"), signal.SIGKILL)
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    (told,) = restarted(run.events)
    assert (told["attempt"], told["root_cause"], told["cause"]) == (2, "worker-1", "signal")
    assert told["message"].startswith("worker-1 on worker1 was killed by SIGKILL (signal 9)")
    assert lab.saved("shot")["attempts"] == 2
    run_dir = lab.runs_dir / "shot"
    earlier = json.loads((run_dir / "attempts/1/result.json").read_text())
    assert (earlier["state"], earlier["root_cause"]) == ("failed", "worker-1")
    assert (run_dir / "attempts/1/logs/worker-0.log").read_text()
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert [(told["attempt"], told["staged"]) for told in manifest["attempts"]] == [
        *((1, True), (2, True))
    ]
    rank = lab.root / "jobs/shot/worker-1"
    assert json.loads((rank / "attempts/1/state.json").read_text())["exit_code"] == -9
    assert json.loads((rank / "state.json").read_text())["attempt"] == 2
    assert job_processes(lab.root) == []


def test_a_rank_that_hangs_is_found_with_its_stacks(local_lab: Labs) -> None:
    lab = local_lab()
    run = plain(
        lab,
        "stuck",
        "--steps 20 --hang worker-1 --attempts 1",
        train_job_hang_min_seconds=3,
        train_job_hang_factor=5,
        **QUICK,
    ).end()
    assert run.code == 0, run.result
    (told,) = restarted(run.events)
    assert (told["root_cause"], told["cause"]) == ("worker-1", "hung")
    assert "has made no step for" in told["message"]
    assert "after step 5; the limit is" in told["message"]
    assert "its main thread was at main.py, line" in told["message"]
    stacks = (lab.root / "jobs/stuck/worker-1/attempts/1/stacks.txt").read_text()
    assert "most recent call first" in stacks


def test_a_bug_is_not_tried_again_but_by_hand(local_lab: Labs) -> None:
    lab = local_lab()
    run = plain(
        lab, "bug", "--steps 900 --exit-early worker-1 --attempts 1 --slow-attempts 1", **QUICK
    ).end()
    assert run.code == 1
    assert restarted(run.events) == []
    message = run.result["message"]
    assert "worker-1 on worker1 exited with code 1: ModuleNotFoundError" in message
    assert message.endswith("not started again: it would fail in the same way again")
    assert run.seconds < 30
    assert lab.saved("bug")["cause"] == "exit"
    assert job_processes(lab.root) == []
    seen = Command(*lab.words("attach", "--json", "bug", **QUICK)).end()
    assert seen.code == 1, "looking at a job that was given up does not start it"
    again = Command(*lab.words("restart", "--json", "bug")).end()
    assert again.code == 0, again.error
    assert lab.saved("bug")["attempts"] == 2


def test_another_control_node_goes_on_where_the_first_one_broke_off(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(
        lab, "left", "--steps 400 --slow-attempts 1", train_job_environment={"SECRET": "1"}, **QUICK
    )
    command.wait_for(training)
    command.kill()
    os.kill(rank_pid(lab.root, "left", "worker-0"), signal.SIGKILL)
    # The other one knows the inventory alone; the first one's playbook may write a moment longer.
    lab.runs_dir.rename(lab.runs_dir.with_name("elsewhere"))
    attached = Command(*lab.words("attach", "--json", "left")).end()
    assert attached.code == 0, (attached.result, attached.error)
    told = restarted(attached.events)
    assert [event["attempt"] for event in told] == [2], told
    assert lab.saved("left")["attempts"] == 2
    assert "secret is set" in (lab.runs_dir / "left/logs/worker-1.log").read_text()
    manifest = json.loads((lab.runs_dir / "left/manifest.json").read_text())
    assert manifest["arguments"] == ["--steps", "400", "--slow-attempts", "1"]


def test_attach_goes_on_where_the_control_node_broke_off_between_two_attempts(
    local_lab: Labs,
) -> None:
    lab = local_lab()
    command = plain(
        lab,
        "between",
        "--steps 400 --slow-attempts 1",
        train_job_max_restarts=1,
        train_job_restart_delay=3,
    )
    command.wait_for(training)
    os.kill(rank_pid(lab.root, "between", "worker-0"), signal.SIGKILL)
    command.wait_for(lambda event: event["event"] == "restart")
    command.kill()
    assert lab.saved("between")["state"] == "failed"
    words = lab.words("attach", "--json", "between")
    attached = Command(*words).end()
    assert attached.code == 0, (attached.result, attached.error)
    told = restarted(attached.events)
    assert [event["attempt"] for event in told] == [2], told

    # What was told as the end is not taken up again by looking at it.
    again = Command(*words).end()
    assert (again.code, lab.saved("between")["attempts"]) == (0, 2)


def test_a_job_that_was_told_to_stop_between_two_attempts_stays_so(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(
        lab,
        "enough",
        "--steps 400 --slow-attempts 1",
        train_job_max_restarts=3,
        train_job_restart_delay=8,
    )
    command.wait_for(training)
    os.kill(rank_pid(lab.root, "enough", "worker-1"), signal.SIGKILL)
    command.wait_for(lambda event: event["event"] == "restart")
    stopped = Command(*lab.words("stop", "enough"))
    run = command.end()
    assert stopped.process.wait() == 0
    assert (run.code, run.result["state"]) == (3, "stopped"), run.result
    assert "was stopped before it started" in run.result["message"]
    assert job_processes(lab.root) == []
    again = Command(*lab.words("restart", "--json", "enough")).end()
    assert again.code == 0, (again.result, again.error)
