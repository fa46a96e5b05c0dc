"""Further attempts: the failures that justify one, the reports about it, and the same job."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import playbook_jobs
from tests.support.bare_ranks import wait_until
from tests.support.job_folders import check_files
from tests.support.jobs import PLAIN, job_processes, plain, rank_pid, training
from tests.support.lab import REPOSITORY, Command, Lab, Labs
from tests.support.playbook_jobs import PlaybookCommand
from train.host import json_files

QUICK: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.1}


def restarted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "restart"]


Start = Callable[..., Command | PlaybookCommand]


def by_playbook(lab: Lab, job: str, words: str, **variables: Any) -> PlaybookCommand:
    """Start a job of the script PLAIN, with the arguments ``words``, by ``ansible-playbook``."""
    return playbook_jobs.start(lab, job, PLAIN, words.split(), **variables)


#: Both ways restart a job in the same way.
BOTH = pytest.mark.parametrize("start", [plain, by_playbook], ids=["wrapper", "playbook"])


@BOTH
def test_a_gang_is_started_again_that_was_killed_and_that_hangs(
    local_lab: Labs, start: Start
) -> None:
    lab = local_lab()
    command = start(
        lab,
        "shot",
        "--steps 20 --child --deaf --hang worker-1 --attempts 2 --slow-attempts 2",
        train_job_hang_min_seconds=5,
        train_job_hang_factor=5,
        **QUICK,
    )
    command.wait_for(training)
    os.kill(rank_pid(lab.root, "shot", "worker-1"), signal.SIGKILL)
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    killed, hung = restarted(run.events)
    resumed = [e["text"] for e in run.events if e["event"] == "notice" and e["kind"] == "resumed"]
    assert [text.partition(";")[0] for text in resumed] == [
        f"attempt {number} starts at step 1, because TRAIN_CHECKPOINT_DIR was empty"
        for number in (2, 3)
    ]
    assert (killed["attempt"], killed["root_cause"], killed["cause"]) == (2, "worker-1", "signal")
    assert killed["message"].startswith("worker-1 on worker1 was killed by SIGKILL (signal 9)")
    assert (hung["attempt"], hung["root_cause"], hung["cause"]) == (3, "worker-1", "hung")
    for words in (
        "has not completed a step for",
        "after step 5; the limit is",
        "its main thread was at main.py, line",
    ):
        assert words in hung["message"]
    assert lab.saved("shot")["attempts"] == 3
    run_dir = lab.runs_dir / "shot"
    earlier = json.loads((run_dir / "attempts/1/result.json").read_text())
    assert (earlier["state"], earlier["root_cause"]) == ("failed", "worker-1")
    assert (run_dir / "attempts/1/logs/worker-0.log").read_text()
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert [(told["attempt"], told["staged"]) for told in manifest["attempts"]] == [
        *((1, True), (2, True), (3, True))
    ]
    rank = lab.root / "jobs/shot/worker-1"
    assert json.loads((rank / "attempts/1/state.json").read_text())["exit_code"] == -9
    assert "most recent call first" in (rank / "attempts/2/stacks.txt").read_text()
    assert json.loads((rank / "state.json").read_text())["attempt"] == 3
    assert job_processes(lab.root) == []


@BOTH
def test_a_crash_at_the_same_step_is_not_tried_a_third_time(local_lab: Labs, start: Start) -> None:
    lab = local_lab()
    run = start(lab, "crash", "--steps 300 --abort worker-1", **QUICK).end()
    assert run.code == 1, run.error
    assert [event["attempt"] for event in restarted(run.events)] == [2]
    assert "was killed by SIGABRT (signal 6)" in run.result["message"]
    assert "it crashed in native code" in run.result["message"]
    earlier = "\nattempt 1: worker-1 was killed by SIGABRT (signal 6); its Python code was at "
    assert earlier in lab.saved("crash")["message"]
    assert earlier in run.result["message"]
    assert "it failed the same way twice at step 5" in run.result["message"]
    assert lab.saved("crash")["attempts"] == 2
    check_files(lab, "crash")


def test_a_bug_is_not_tried_again_but_by_hand(local_lab: Labs) -> None:
    """The bug appears while no control node follows the job."""
    lab = local_lab()
    arguments = "--steps 60 --fail worker-1 --seconds 1 --attempts 1 --slow-attempts 1"
    command = plain(lab, "bug", arguments, "--on-interrupt", "leave", **QUICK)
    command.wait_for(training)
    command.process.send_signal(signal.SIGINT)
    assert command.end().code == 130
    state = str(lab.root / "jobs/bug/worker-1/state.json")
    wait_until(lambda: (json_files.read_json(state) or {})["phase"] == "failed", "the failure")
    for _ in range(2):  # attaching to a job that was given up does not restart it
        seen = Command(*lab.words("attach", "--json", "bug", **QUICK)).end()
        assert seen.code == 1
        assert restarted(seen.events) == []
        message = seen.result["message"]
        assert message.startswith("worker-1 on worker1 exited with code 1: ModuleNotFoundError")
        assert message.endswith("not restarted: it would fail the same way again")
        assert lab.saved("bug")["cause"] == "exit"
        assert job_processes(lab.root) == []
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
    # The second clone only has the inventory. The first one's playbook may write a moment longer.
    lab.runs_dir.rename(lab.runs_dir.with_name("elsewhere"))
    attached = Command(*lab.words("attach", "--json", "left")).end()
    assert attached.code == 0, (attached.result, attached.error)
    told = restarted(attached.events)
    assert [event["attempt"] for event in told] == [2], told
    assert lab.saved("left")["attempts"] == 2
    assert "secret is set" in (lab.runs_dir / "left/logs/worker-1.log").read_text()
    manifest = json.loads((lab.runs_dir / "left/manifest.json").read_text())
    assert manifest["arguments"] == ["--steps", "400", "--slow-attempts", "1"]


@pytest.mark.soak
def test_between_two_attempts_the_control_node_breaks_off_and_the_job_is_stopped(
    local_lab: Labs,
) -> None:
    lab = local_lab()

    def fall(command: Command) -> None:
        command.wait_for(training)
        os.kill(rank_pid(lab.root, "between", "worker-0"), signal.SIGKILL)
        command.wait_for(lambda event: event["event"] == "restart")

    arguments = "--steps 400 --slow-attempts 2"
    command = plain(lab, "between", arguments, **{**QUICK, "train_job_restart_delay": 4})
    fall(command)
    command.kill()
    assert lab.saved("between")["state"] == "failed"
    attached = Command(*lab.words("attach", "--json", "between"))
    attached.wait_for(lambda event: event["event"] == "restart")
    fall(attached)
    assert [event["attempt"] for event in restarted(attached.events)] == [2, 3]

    stopped = Command(*lab.words("stop", "between"))
    run = attached.end()
    assert stopped.process.wait() == 0
    assert (run.code, run.result["state"]) == (3, "stopped"), run.result
    # On a slow machine, the next attempt may have been about to start.
    assert run.result["message"].startswith(
        ("the job was stopped by ", "the job was stopped before")
    )
    assert job_processes(lab.root) == []

    again = Command(*lab.words("restart", "--json", "between")).end()
    assert again.code == 0, (again.result, again.error)


def test_files_of_a_playbook_are_not_taken_for_those_of_the_role(
    local_lab: Labs, tmp_path: Path
) -> None:
    """A user's playbook may have task files of the same names next to it."""
    lab, folder = local_lab(), tmp_path / "site"
    shutil.copytree(REPOSITORY / "playbooks/group_vars", folder / "group_vars")
    (folder / "tasks").mkdir()
    for path in (REPOSITORY / "roles/train_job/tasks").glob("*.yml"):
        (folder / "tasks" / path.name).write_text(
            "- ansible.builtin.fail:\n    msg: not the role\n"
        )
    role = {"import_role": {"name": "tensorflow_ansible.cluster.train_job"}}
    play = {"hosts": "worker", "gather_facts": False, "strategy": "linear", "tasks": [role]}
    (folder / "site.yml").write_text(json.dumps([play]))
    arguments = ["--steps", "20", "--abort", "worker-1", "--attempts", "1"]
    given = {"train_job_id": "site", "train_job_script": str(PLAIN), "train_job_args": arguments}
    done = lab.playbook(str(folder / "site.yml"), **given, **QUICK)
    assert done.returncode == 0, done.stdout[-3000:]
    assert lab.saved("site")["attempts"] == 2
