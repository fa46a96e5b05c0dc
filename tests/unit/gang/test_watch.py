"""The watch over a gang, with hosts that are made up."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train.gang.watch import causes, follow
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.follow import Gang, Limits, UnreachableError
from train.gang.watch.outcome import Outcome, result_of
from train.gang.watch.views import Target

Update = dict[str, Any]


def target(task: str, non_training: bool = False) -> Target:
    return Target(
        f"host-of-{task}", task, f"/jobs/x/{task}", "/usr/bin/python3", task, non_training
    )


class Hosts:
    """Answers the calls of a gang from a script of states for each task; the last one stays."""

    def __init__(self, **states: list[Update | Exception]) -> None:
        self.states = {task.replace("_", "-"): iter(told) for task, told in states.items()}
        self.last: dict[str, Update | Exception] = {}
        self.lock = threading.Lock()

    def look(
        self, asked: Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> dict[str, Any]:
        task = asked.task
        time.sleep(0.01)
        with self.lock:
            self.last[task] = next(self.states[task], self.last.get(task, {}))
            told = self.last[task]
        if isinstance(told, Exception):
            raise told
        ((rank_dir, cursor),) = cursors.items()
        log, progress = told.get("log", ""), told.get("progress", "")
        if isinstance(self.states[task], Iterator) and told.get("seen"):
            log = progress = ""
        told["seen"] = True
        update = {
            "state": {k: v for k, v in told.items() if k not in ("log", "progress", "seen")},
            "log": log,
            "progress": progress,
            "supervisor": "",
            "cursor": {
                **cursor,
                "phase": told["phase"],
                "log": cursor["log"] + len(log.encode()),
                "progress": cursor["progress"] + len(progress.encode()),
            },
            "more": False,
            "age": 0.0,
            "now": time.time(),
        }
        return {rank_dir: update}


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gang]:
    monkeypatch.setattr(follow, "ROOT_CAUSE_WAIT", 0.5)
    monkeypatch.setattr(follow, "_BACKOFF", 0.05)
    monkeypatch.setattr(follow, "_LONGEST_BACKOFF", 0.1)

    def make(hosts: Hosts, *targets: Target, **limits: Any) -> Gang:
        about: Any = {name: limits.pop(name) for name in ("peers", "probe") if name in limits}
        given = Limits(
            **{
                "start_timeout": 5.0,
                "unreachable_timeout": 5.0,
                "interval": 0.0,
                "end_timeout": 0.5,
            }
            | limits
        )
        return Gang(targets, tmp_path / "run", hosts.look, lambda line: None, given, **about)

    return make


def done(text: str = "", sha: str = "") -> Update:
    record = json.dumps({"phase": "done", "weights_sha256": sha, "metrics": {"test_accuracy": 0.9}})
    return {"phase": "completed", "exit_code": 0, "log": text, "progress": record + "\n"}


def test_all_complete(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(worker_0=[{"phase": "running"}, done(sha="aa")], worker_1=[done("bye\n", "aa")])
    watched = gang(hosts, target("worker-0"), target("worker-1"))
    outcome = watched.follow()
    assert outcome == Outcome("completed", None, "all ranks completed")
    result = result_of("x", outcome, watched.views, attempts=1)
    assert result["metrics"] == {"test_accuracy": 0.9}
    assert [rank["weights_sha256"] for rank in result["ranks"]] == ["aa", "aa"]
    assert (watched.run_dir / "logs/worker-1.log").read_text() == "bye\n"
    events = (watched.run_dir / follow.EVENTS_FILE).read_text().splitlines()
    assert {json.loads(line)["task"] for line in events} == {"worker-0", "worker-1"}


def test_different_weights_are_a_failure(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(worker_0=[done(sha="a" * 64)], worker_1=[done(sha="b" * 64)])
    outcome = gang(hosts, target("worker-0"), target("worker-1")).follow()
    assert outcome.state == "failed"
    assert "aaaaaaaaaaaa on worker-0; bbbbbbbbbbbb on worker-1" in outcome.message


def test_services_do_not_hold_the_gang(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(chief_0=[done()], ps_0=[{"phase": "running"}])
    watched = gang(hosts, target("chief-0"), target("ps-0", non_training=True))
    assert watched.follow().state == "completed"
    assert not watched.views[1].final


def record(phase: str, **fields: Any) -> str:
    return json.dumps({"phase": phase, **fields}) + "\n"


RUNNING: Update = {"phase": "running", "running_at": 1.0}
CHIEF: Update = {**RUNNING, "progress": record("training", step=1)}
SERVING: Update = {**RUNNING, "progress": record("serving")}
KILLED: Update = {
    **RUNNING,
    "phase": "failed",
    "exit_code": -9,
    "reason": "was killed by SIGKILL (signal 9)",
    "ended_at": 5.0,
}
SERVED = (
    target("chief-0"),
    target("worker-0", non_training=True),
    target("worker-1", non_training=True),
    target("ps-0", non_training=True),
)


def test_services_that_end_by_themselves_get_time_for_it(gang: Callable[..., Gang]) -> None:
    serving = [dict(SERVING) for _ in range(80)]
    hosts = Hosts(chief_0=[done()], ps_0=[*serving, done()], evaluator_0=[dict(RUNNING)])
    targets = (
        target("chief-0"),
        target("ps-0", non_training=True),
        target("evaluator-0", non_training=True),
    )
    watched = gang(hosts, *targets, end_timeout=10.0)
    assert watched.follow() == Outcome("completed", None, "all ranks completed")
    assert [view.phase for view in watched.views] == ["completed", "completed", "running"]


def test_services_that_do_not_end_are_named(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(chief_0=[done()], ps_0=[dict(SERVING)])
    outcome = gang(hosts, target("chief-0"), target("ps-0", non_training=True)).follow()
    assert outcome.state == "completed"
    assert outcome.message == (
        "the training completed; "
        "ps-0 on host-of-ps-0 did not end within 0.5 s (train_job_end_timeout)"
    )


def test_a_service_that_fails_after_the_training_is_no_failure(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(chief_0=[done()], ps_0=[dict(KILLED)])
    outcome = gang(hosts, target("chief-0"), target("ps-0", non_training=True)).follow()
    assert outcome.state == "completed"
    assert outcome.message.endswith("; ps-0 on host-of-ps-0 was killed by SIGKILL (signal 9)")


def test_a_training_goes_on_without_a_worker_beside_parameter_servers(
    gang: Callable[..., Gang],
) -> None:
    hosts = Hosts(
        chief_0=[dict(CHIEF)],
        worker_0=[dict(SERVING)],
        worker_1=[dict(KILLED)],
        ps_0=[dict(SERVING)],
    )
    watched = gang(hosts, *SERVED)
    threading.Timer(2.0, lambda: hosts.states.update({"chief-0": iter([done()])})).start()
    outcome = watched.follow()
    assert outcome.state == "completed"
    assert "; worker-1 on host-of-worker-1 was killed by SIGKILL (signal 9)" in outcome.message
    ranks = result_of("x", outcome, watched.views, attempts=1)["ranks"]
    assert (ranks[2]["phase"], ranks[2]["exit_code"]) == ("failed", -9)


@pytest.mark.parametrize("root_cause", ["chief-0", "ps-0"])
def test_a_lost_chief_or_parameter_server_is_named_not_a_worker_lost_before(
    gang: Callable[..., Gang], root_cause: str
) -> None:
    lost = {**KILLED, "ended_at": 9.0}
    hosts = Hosts(
        chief_0=[dict(CHIEF), {**CHIEF, **lost} if root_cause == "chief-0" else dict(CHIEF)],
        worker_0=[dict(SERVING)],
        worker_1=[dict(KILLED)],
        ps_0=[dict(SERVING), lost if root_cause == "ps-0" else dict(SERVING)],
    )
    outcome = gang(hosts, *SERVED).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", root_cause)


@pytest.mark.parametrize("lost", [KILLED, {**KILLED, "phase": "failed", "exit_code": 1}])
def test_a_worker_that_is_lost_before_the_training_ends_the_gang(
    gang: Callable[..., Gang], lost: Update
) -> None:
    starting = {**RUNNING, "progress": record("starting")}
    hosts = Hosts(
        chief_0=[starting], worker_0=[dict(SERVING)], worker_1=[dict(lost)], ps_0=[dict(SERVING)]
    )
    outcome = gang(hosts, *SERVED).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-1")


def test_a_worker_that_never_ran_ends_the_gang(gang: Callable[..., Gang]) -> None:
    failed = {key: value for key, value in KILLED.items() if key != "running_at"}
    hosts = Hosts(
        chief_0=[dict(RUNNING)], worker_0=[dict(RUNNING)], worker_1=[failed], ps_0=[dict(RUNNING)]
    )
    assert gang(hosts, *SERVED).follow().root_cause == "worker-1"


def test_without_any_worker_a_training_does_not_go_on(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(
        chief_0=[dict(CHIEF)],
        worker_0=[dict(SERVING), {**KILLED, "ended_at": 4.0}],
        worker_1=[dict(SERVING), dict(KILLED)],
        ps_0=[dict(SERVING)],
    )
    outcome = gang(hosts, *SERVED).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-0")


def test_a_training_goes_on_without_the_host_of_a_worker(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(
        chief_0=[dict(CHIEF)],
        worker_0=[dict(SERVING)],
        worker_1=[dict(SERVING), UnreachableError("no route")],
        ps_0=[dict(SERVING)],
    )
    watched = gang(hosts, *SERVED, unreachable_timeout=0.3)
    threading.Timer(2.0, lambda: hosts.states.update({"chief-0": iter([done()])})).start()
    outcome = watched.follow()
    assert outcome.state == "completed"
    assert "; worker-1 on host-of-worker-1 cannot be reached: no route" in outcome.message


def test_a_host_that_freezes_is_given_up(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "WAIT", 0.1)
    hosts = Hosts(worker_0=[dict(CHIEF)], worker_1=[dict(CHIEF)])
    thaw = threading.Event()

    def look(asked: Target, *rest: Any) -> dict[str, Any]:
        if asked.task == "worker-1" and hosts.last.get("worker-1"):
            thaw.wait(30)
        return hosts.look(asked, *rest)

    watched = gang(hosts, target("worker-0"), target("worker-1"), unreachable_timeout=0.5)
    watched._look = look
    outcome = watched.follow()
    thaw.set()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-1")
    assert "was unreachable for 0.5 s (train_job_unreachable_timeout)" in outcome.message


def test_the_rank_that_was_first_at_fault_is_named(gang: Callable[..., Gang]) -> None:
    lost = "UnavailableError: Connection reset by peer\n"
    hosts = Hosts(
        worker_0=[{"phase": "failed", "exit_code": 1, "reason": "exited with code 1", "log": lost}],
        worker_1=[
            {"phase": "running"},
            {"phase": "failed", "exit_code": -9, "reason": "was killed by SIGKILL (signal 9)"},
        ],
    )
    outcome = gang(hosts, target("worker-0"), target("worker-1")).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-1")
    assert outcome.message.startswith("worker-1 on host-of-worker-1 was killed by SIGKILL")


@pytest.mark.parametrize(
    "said",
    [
        "worker-1 (192.0.2.1:12345) was unresponsive for 10 s",
        "lost contact with worker-1: UnavailableError: Socket closed",
    ],
)
def test_a_rank_that_seems_frozen_is_named(gang: Callable[..., Gang], said: str) -> None:
    reason = f"exited with code 1: TrainingError: {said}"
    log = f"TrainingError: {said}\n"
    failed = {"phase": "failed", "exit_code": 1, "reason": reason, "log": log}
    hosts = Hosts(worker_0=[failed], worker_1=[{"phase": "running"}])
    outcome = gang(hosts, target("worker-0"), target("worker-1")).follow()
    assert outcome.root_cause == "worker-1"
    assert outcome.message.splitlines()[0] == (
        f"worker-1 on host-of-worker-1 is unreachable: worker-0 on host-of-worker-0 {reason}"
    )
    assert outcome.cause == causes.NETWORK


def test_where_all_only_lost_contact_the_first_is_named(gang: Callable[..., Gang]) -> None:
    failed = {"phase": "failed", "exit_code": 1, "reason": "exited", "log": "UnavailableError\n"}
    hosts = Hosts(worker_0=[{"phase": "running"}], worker_1=[failed])
    outcome = gang(hosts, target("worker-0"), target("worker-1")).follow()
    assert outcome.root_cause == "worker-1"
    assert "its last lines:\n  UnavailableError" in outcome.message


def test_a_rank_that_never_starts(gang: Callable[..., Gang]) -> None:
    hosts = Hosts(worker_0=[{"phase": "running"}], worker_1=[{"phase": "absent"}])
    watched = gang(hosts, target("worker-0"), target("worker-1"), start_timeout=0.3)
    outcome = watched.follow()
    assert outcome.root_cause == "worker-1"
    assert "did not start within 0.3 s (train_job_start_timeout)" in outcome.message


def test_a_host_that_is_away_for_a_while_does_no_harm(gang: Callable[..., Gang]) -> None:
    away = [UnreachableError("no route") for _ in range(5)]
    hosts = Hosts(worker_0=[{"phase": "running"}, *away, done()])
    assert gang(hosts, target("worker-0")).follow().state == "completed"


STEPPING: Update = {**RUNNING, "progress": record("training", step=7)}
GONE = UnreachableError("gone")


def stepping() -> list[Update | Exception]:
    """The updates of a rank that makes a step with each."""
    return [{**RUNNING, "progress": record("training", step=step)} for step in range(400)]


def notices(watched: Gang) -> list[dict[str, Any]]:
    lines = (watched.run_dir / follow.EVENTS_FILE).read_text().splitlines()
    return [json.loads(line)["notice"] for line in lines if "notice" in json.loads(line)]


def probing(word: str) -> dict[str, Any]:
    """What makes a gang of two ask worker-0 whether it reaches worker-1."""
    reached = {"worker-0": "open", "worker-1": word}
    found = {"reached": reached, "listening": True, "own": True, "addresses": [], "proxy": ""}
    peers = {"worker-0": ("a", 1), "worker-1": ("b", 1)}
    return {"peers": peers, "probe": lambda target, peers: dict(found)}


def test_a_host_that_stays_away_while_steps_are_made_is_no_failure(
    gang: Callable[..., Gang],
) -> None:
    hosts = Hosts(worker_0=stepping(), worker_1=[dict(STEPPING), GONE])
    targets = (target("worker-0"), target("worker-1"))
    watched = gang(hosts, *targets, unreachable_timeout=0.5, **probing("timeout"))
    threading.Timer(3.0, lambda: hosts.states.update({"worker-1": iter([done()])})).start()
    threading.Timer(3.0, lambda: hosts.states.update({"worker-0": iter([done()])})).start()
    assert watched.follow().state == "completed"


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({}, "no other rank makes a step any more"),
        (probing("timeout"), "nor do other ranks reach it (worker-0: timeout)"),
    ],
)
def test_a_host_that_stays_away_is_lost_where_others_confirm_it(
    gang: Callable[..., Gang], evidence: dict[str, Any], words: str
) -> None:
    hosts = Hosts(worker_0=[dict(STEPPING)], worker_1=[dict(STEPPING), GONE])
    targets = (target("worker-0"), target("worker-1"))
    outcome = gang(hosts, *targets, unreachable_timeout=0.5, **evidence).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", causes.UNREACHABLE)
    assert "was unreachable for 0.5 s (train_job_unreachable_timeout): gone; " in outcome.message
    assert words in outcome.message
    assert outcome.unreachable == ["host-of-worker-1"]


@pytest.mark.parametrize(
    ("states", "evidence"),
    [(RUNNING, {}), (STEPPING, probing("open")), (STEPPING, probing("refused"))],
)
def test_what_is_merely_not_known_ends_no_job(
    gang: Callable[..., Gang], states: Update, evidence: dict[str, Any]
) -> None:
    hosts = Hosts(worker_0=[dict(states)], worker_1=[dict(states), GONE])
    targets = (target("worker-0"), target("worker-1"))
    watched = gang(hosts, *targets, unreachable_timeout=0.3, **evidence)
    for task in ("worker-0", "worker-1"):
        again: dict[str, Any] = {task: iter([done()])}
        threading.Timer(3.0, lambda again=again: hosts.states.update(again)).start()
    assert watched.follow().state == "completed"


def test_without_any_connection_the_job_is_left_alone_until_all_states_are_read(
    gang: Callable[..., Gang],
) -> None:
    cut = [GONE for _ in range(20)]
    lost: Update = {
        "phase": "failed",
        "exit_code": 1,
        "reason": "exited with code 1: UnavailableError: x",
    }
    first: Update = {"phase": "failed", "exit_code": 3, "reason": "exited with code 3: ValueError"}
    hosts = Hosts(
        # The one that answers first fell because of the other.
        worker_0=[dict(STEPPING), *cut, {**lost, "ended_at": 9.0}],
        worker_1=[dict(STEPPING), *cut, *cut, *cut, {**first, "ended_at": 8.0}],
    )
    targets = (target("worker-0"), target("worker-1"))
    watched = gang(hosts, *targets, unreachable_timeout=10.0)
    outcome = watched.follow()
    assert outcome.root_cause == "worker-1"
    assert "exited with code 3: ValueError" in outcome.message
    kinds = [notice["kind"] for notice in notices(watched)]
    assert kinds[:2] == ["disconnected", "connected"]
    assert (
        "no connection to host-of-worker-0, host-of-worker-1 since" in notices(watched)[0]["text"]
    )


@pytest.mark.parametrize("error", [GONE, AttributeError("no such plugin")])
def test_a_limit_without_connection_ends_the_watch_and_not_the_job(
    gang: Callable[..., Gang], error: Exception
) -> None:
    hosts = Hosts(worker_0=[dict(STEPPING), error])
    watched = gang(hosts, target("worker-0"), disconnected_timeout=0.3)
    with pytest.raises(follow.WatchEndedError, match="train_job_disconnected_timeout"):
        watched.follow()
    assert str(error) in notices(watched)[0]["text"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"metrics": 0.93}', "metrics is no object of numbers"),
        ('{"loss": ' + "9" * 400 + "}", "loss is out of range"),
        ('{"weights_sha256": ["a"]}', "weights_sha256 is no text"),
        ("[" * 5000, "it is nested too deeply"),
        ('{"step": "\x1b]52;c;aGk=\x07"}', "it is no JSON"),
    ],
)
def test_a_malformed_progress_line_is_reported_once_and_passed_over(
    gang: Callable[..., Gang], line: str, why: str
) -> None:
    told = {**RUNNING, "progress": record("training", step=1) + line + "\n" + line + "\n"}
    hosts = Hosts(worker_0=[told, {**RUNNING, "progress": line + "\n"}, done()])
    watched = gang(hosts, target("worker-0"))
    assert watched.follow().state == "completed"
    (notice,) = notices(watched)
    assert "line 2 of its progress is passed over" in notice["text"]
    assert notice["text"].endswith(why)
    assert watched.views[0].bad_lines == 3


@pytest.mark.parametrize(
    "update",
    [
        None,
        {},
        {"state": {"phase": "dancing"}},
        {"state": {"phase": "failed", "exit_code": "1"}},
        {"log": ["x"]},
        {"cursor": {"phase": "running", "frozen": False, "log": -1, "progress": 0}},
        {"now": float("nan")},
    ],
)
def test_a_malformed_update_of_a_host_ends_no_job(
    gang: Callable[..., Gang], update: dict[str, Any] | None
) -> None:
    hosts = Hosts(worker_0=[dict(STEPPING), done()])
    lies = iter(range(5))

    def look(asked: Target, cursors: dict[str, Any], *rest: Any) -> dict[str, Any]:
        if next(lies, None) is None:
            return hosts.look(asked, cursors, *rest)
        told = Hosts(worker_0=[dict(STEPPING)]).look(asked, cursors, *rest)
        return {name: update and {**told[name], **update} for name in told}

    watched = gang(hosts, target("worker-0"))
    watched._look = look
    assert watched.follow().state == "completed"


def test_a_file_that_cannot_be_written_is_a_warning_and_is_fetched_again(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_DISK_PAUSE", 0.05)
    watched = gang(Hosts(worker_0=[]), target("worker-0"))
    text, states = "first line\nsecond line\n", iter(["running"] * 6 + ["completed"] * 9)

    def look(asked: Target, cursors: dict[str, Any], *rest: Any) -> dict[str, Any]:
        ((rank_dir, cursor),) = cursors.items()
        phase, log = next(states), text[cursor["log"] :]
        told = {"state": {"phase": phase}, "log": log, "progress": "", "supervisor": ""}
        told["cursor"] = {**cursor, "phase": phase, "log": len(text)}
        return {rank_dir: {**told, "more": False, "age": 0.0, "now": time.time(), "load": {}}}

    watched._look = look
    append, left = FetchedFile.append, iter(range(3))

    def full(self: FetchedFile, data: bytes, end: int) -> None:
        if next(left, None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, data, end)

    monkeypatch.setattr(FetchedFile, "append", full)
    assert watched.follow().state == "completed"
    assert (watched.run_dir / "logs/worker-0.log").read_text() == text
    assert list(watched.views[0].tail) == text.splitlines()
    (notice,) = notices(watched)
    assert "No space left on device; the job continues" in notice["text"]


def test_a_job_that_was_stopped_elsewhere(gang: Callable[..., Gang]) -> None:
    stopped = {"phase": "stopped", "reason": "was stopped"}
    hosts = Hosts(worker_0=[{"phase": "running"}, stopped], worker_1=[{"phase": "running"}])
    outcome = gang(hosts, target("worker-0"), target("worker-1")).follow()
    assert outcome.state == "stopped"


def test_two_do_not_follow_one_job(gang: Callable[..., Gang]) -> None:
    first = gang(Hosts(worker_0=[done()]), target("worker-0"))
    with pytest.raises(follow.BusyError, match="another process follows this job"):
        gang(Hosts(worker_0=[done()]), target("worker-0"))
    assert first.follow().state == "completed"


def test_numbers_that_are_none_are_shown_as_they_are(gang: Callable[..., Gang]) -> None:
    lost = {"phase": "running", "progress": '{"phase": "training", "step": 3, "loss": NaN}\n'}
    watched = gang(Hosts(worker_0=[lost, done()]), target("worker-0"))
    watched.follow()
    told = (watched.run_dir / follow.EVENTS_FILE).read_text()
    losses = [json.loads(line)["progress"].get("loss") for line in told.splitlines()]
    assert losses[0] == "NaN"
