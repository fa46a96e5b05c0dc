"""The output and the exit codes of commands, in this process."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import PLAIN
from tests.unit.cli.conftest import Answers
from train.cli import commands, playbooks
from train.cli.job import keep
from train.cli.main import main
from train.gang.lines import stopped


def test_the_scripts_own_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "--help"]) == 0
    assert "usage: worker.py" in capfd.readouterr().out
    mine = ["run", "--script", str(PLAIN), "-e"]
    assert main([*mine, f"train_job_python={sys.executable}", "--", "-h"]) == 0
    assert "--asleep" in capfd.readouterr().out
    assert main([*mine, "train_job_python=/no/python", "--", "--help"]) == 2
    assert "this machine has no /no/python" in capfd.readouterr().err


REPORT = {
    **{"was": "running", "phase": "stopped", "remaining": [7], "ended": 1, "port": 12345},
    **{"port_free": None, "gpu_memory_free": None, "given_back": 0},
}


def test_what_became_of_a_rank_that_was_stopped() -> None:
    free = {"port_free": True, "gpu_memory_free": True, "ended": 3, "remaining": []}
    said = "running -> stopped, 3 processes ended, 0 left, port 12345 free, GPU memory released"
    assert stopped({**REPORT, **free}) == said
    assert stopped(REPORT) == "running -> stopped, 1 process ended, 1 left"
    absent = {**REPORT, "was": "absent"}
    assert stopped(absent) == "no rank of the job"
    assert stopped({**absent, "given_back": 2}) == "no rank of the job, 2 leases released"


def test_a_list_of_nothing_and_one_of_a_playbook_that_broke_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = playbooks.PlaybookOutcome(code=0)
    monkeypatch.setattr(playbooks, "run_playbook", lambda *_: outcome)
    assert main(["list"]) == main(["list", "--json"]) == 0
    assert capsys.readouterr().out == 'no jobs\n{"jobs": []}\n'
    outcome = playbooks.PlaybookOutcome(code=1, last_lines=["[ERROR]: no vault secrets found."])
    assert main(["list"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "ansible-playbook failed:\n[ERROR]: no vault secrets found." in shown.err


def listed(number: int, **about: Any) -> dict[str, Any]:
    """A job as the hosts have it."""
    job = {
        **{"job": f"night-{number}", "state": "completed", "attempt": 1, "alive": 0, "total": 5},
        **{"hosts": ["a", "b", "c", "d", "e"], "started_at": 0.0, "ended_at": 1.0, "age": 90.0},
        **{"size": 2_500_000, "progress": {"step": 7, "steps": 10}, "ranks": [], "stale": []},
    }
    return {**job, "members": None, "restarts": 0, **about}


def test_the_newest_jobs_are_listed(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [listed(number) for number in range(25)]
    answers({"job_list": {"a": {"jobs": jobs}}})
    assert main(["list"]) == 0
    header, first, *rest = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["job", "state", "attempt"]
    assert first.startswith("night-0")
    assert "0 of 5" in first
    assert "a, b, c and 2 more" in first
    assert (len(rest), rest[-1]) == (20, "and 5 older jobs (use --all to show all 25)")
    assert main(["list", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 26
    assert main(["list", "--json", "--newest", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["job"] for job in shown] == ["night-0", "night-1"]


def test_what_is_removed_and_what_stays(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    removed = [{"job": "old-1", "size": 3 * 2**20}, {"job": "old-2", "size": 2 * 2**20}]
    reports = {
        "b": {"removed": [], "kept": ["night: it is running"]},
        "a": {"removed": removed, "kept": []},
        "c": {"removed": [{"job": "../x", "size": 1}], "kept": []},
    }
    calls = answers({"job_remove": reports})
    assert main(["clean", "--keep", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "a: removed old-1 (3.0 MiB), old-2 (2.0 MiB): 5.0 MiB",
        "b: nothing to remove",
        "b: kept night: it is running",
    ]
    assert "clean: c: ignoring a malformed report: " in shown.err
    assert main(["clean", "--older-than", "2d", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("a: would remove old-1")
    assert [(name, check) for name, _, check in calls] == [
        ("clean.yml", False),
        ("clean.yml", True),
    ]
    assert calls[0][1]["train_job_clean_keep"] == 2
    assert calls[1][1]["train_job_clean_older_than"] == "2d"


def test_tf_config_of_one_host_and_of_all(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {host: {"task": {"index": number}} for number, host in enumerate("ab")}
    answers({"gang_plan": {"a": {"framework": "tensorflow", "tf_config": configs}}})
    assert main(["tf-config"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"host": host, "TF_CONFIG": configs[host]} for host in "ab"]
    assert main(["tf-config", "b"]) == 0
    assert json.loads(capsys.readouterr().out) == {"task": {"index": 1}}
    assert main(["tf-config", "c"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, "c has no rank: choose one of a, b" in shown.err) == ("", True)


def test_tf_config_prints_the_variables_of_another_framework(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    by_host = {host: {"RANK": str(number)} for number, host in enumerate("ab")}
    planned = {"framework": "torch", "tf_config": {}, "rank_environments": by_host}
    answers({"gang_plan": {"a": planned}})
    assert main(["tf-config"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"host": "a", "RANK": "0"}, {"host": "b", "RANK": "1"}]
    assert main(["tf-config", "b"]) == 0
    assert json.loads(capsys.readouterr().out) == {"RANK": "1"}


def seen(phase: str, task: str = "", place: str = "a") -> dict[str, Any]:
    """The report of a host on a rank, or on a job that it does not know."""
    rank = {
        **{"job": "night", "task": task, "attempt": 1, "rank_dir": f"/t/jobs/night/{task}"},
        **{"results_dir": f"/t/jobs/night/{task}", "port": 1, "non_training": False},
        **{"host_python": "/usr/bin/python3", "place": place},
    }
    state = {"phase": phase, "reason": "was stopped by anna" if phase == "stopped" else ""}
    return {
        "state": state,
        "last_line": "",
        "progress": {},
        "rank": rank if task else None,
    }


def test_the_status_of_ranks_is_in_their_order_and_once_for_each(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = {
        "a": {**seen("running", "worker-10"), "more": [seen("running", "worker-2")]},
        "b": {**seen("running", "worker-10"), "more": []},  # another name of the machine
        "c": {**seen("stopped", "chief-0", "c"), "more": []},
    }
    answers({"gang_states": {"a": {"hosts": reports}}})
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "night chief-0 on c",
        "night worker-2 on a",
        "night worker-10 on a",
    ]
    assert "was stopped by anna" in lines[0]
    assert main(["status", "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert [(rank["task"], rank["phase"]) for rank in ranks] == [
        ("chief-0", "stopped"),
        ("worker-2", "running"),
        ("worker-10", "running"),
    ]


def test_a_job_that_no_host_knows(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers({"gang_states": {"a": {"hosts": {"a": {**seen("absent"), "more": []}}}}})
    runs = ["-e", f"train_job_runs_dir={tmp_path}"]
    assert main(["status", "night", *runs]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("no such job on a: ")
    assert "none of the hosts that answered has a rank of job night: `" in shown.err


def test_without_a_terminal_an_interrupt_leaves_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("stop\n"))
    assert commands._ask("night") == "leave"


@pytest.mark.parametrize(
    ("typed", "choice"),
    [("s", "stop"), ("x\n\n Cont", "continue"), ("LEAVE", "leave"), ("", "leave")],
)
def test_what_a_user_answers_to_an_interrupt(
    typed: str, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO(f"{typed}\n" if typed else "")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    before = signal.getsignal(signal.SIGINT)
    assert commands._ask("night") == choice
    assert signal.getsignal(signal.SIGINT) is before


def test_tensorboard_uses_the_variables_of_the_jobs_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"train_job_runs_dir": str(tmp_path)}
    (tmp_path / "night").mkdir()
    keep("night", {**runs, "train_job_root": "/data/train"})
    begun: list[dict[str, Any]] = []

    def begin(name: str, _: Any, variables: dict[str, Any]) -> Any:
        begun.append(variables)
        outcome = playbooks.PlaybookOutcome(code=0)
        return SimpleNamespace(wait=lambda timeout: True, close=lambda: outcome, outcome=outcome)

    monkeypatch.setattr(playbooks, "Playbook", begin)
    words = ["tensorboard", "-e", f"train_job_runs_dir={tmp_path}"]
    assert main([*words, "night", "day"]) == main(words) == 0
    assert begun == [
        {
            **{**runs, "train_job_root": "/data/train", "train_job_tensorboard_port": 6006},
            "train_job_tensorboard_jobs": ["night", "day"],
        },
        {**runs, "train_job_tensorboard_port": 6006, "train_job_tensorboard_jobs": []},
    ]
