"""How a gang ended and whose fault it was, with hosts that are made up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import (
    CHIEF,
    GONE,
    RUNNING,
    STEPPING,
    Hosts,
    Make,
    Told,
    Update,
    done,
    failed,
    notices_of,
    record,
)
from train.gang import cause_names
from train.gang.watch import verdict
from train.gang.watch.outcome import GangOutcome, result_of
from train.gang.watch.views import Target
from train.host import end_causes

States = dict[str, Told]


def test_a_gang_without_a_chief_is_not_complete_before_its_workers(gang: Make) -> None:
    """An empty list of ranks that train has neither completed nor failed."""
    working = [{**RUNNING, "progress": record("training", step=1)}] * 5
    hosts = Hosts(worker_0=[*working, done()], worker_1=[*working, done()], ps_0=[SERVING])
    watched = gang(hosts)
    assert watched.follow().state == "completed"
    assert [view.phase for view in watched.views] == ["completed", "completed", "running"]
    (said,) = [one for one in notices_of(watched) if one["kind"] == "no_chief"]
    assert "add a host to the group chief" in said["text"]
    watched.close()
    assert gang(Hosts(worker_0=[KILLED], ps_0=[SERVING])).follow().root_cause == "worker-0"


def test_an_evaluator_is_waited_for_while_it_is_at_work(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluator without records is at work if it prints a new line or uses its processors."""
    monkeypatch.setattr(verdict, "QUIET", 1.0)
    prints = [{**RUNNING, "log": f"{word} ckpt-3\n"} for word in "abcdefghij" for _ in range(4)]
    again = [{**RUNNING, "log": f"waits since {n} s\n"} for n in range(1000)]
    computes = [{**RUNNING, "load": {"t": n / 10, "cpu_s": n / 10}} for n in range(1000)]
    for told in (prints, again, computes, [RUNNING]):
        hosts = Hosts(chief_0=[done()], evaluator_0=[*told, RUNNING])
        watched = gang(hosts, non_training_exit_timeout=3.0)
        outcome = watched.follow()
        assert outcome.state == "completed"
        if told is computes:
            (doubt,) = outcome.doubts
            assert doubt.startswith("evaluator-0 on host-of-evaluator-0 did not end within 3 s")
            assert "train_job_non_training_exit_timeout" in doubt
        else:
            assert (outcome.message, outcome.doubts) == (COMPLETED, [])
        printed = (watched.run_dir / "logs/evaluator-0.log").read_text() if told is prints else ""
        assert printed.endswith("j ckpt-3\n") is (told is prints)
        watched.close()


def test_an_evaluator_that_fails_after_the_training_is_a_doubt(gang: Make) -> None:
    working = {**RUNNING, "progress": record("evaluating")}
    hosts = Hosts(chief_0=[done()], evaluator_0=[*[working] * 20, KILLED])
    (doubt,) = gang(hosts, non_training_exit_timeout=5.0).follow().doubts
    assert SIGKILL in doubt
    assert "the last checkpoint may not have been evaluated" in doubt


BEGINNING: Update = {**RUNNING, "progress": record("starting")}
SERVING: Update = {**RUNNING, "progress": record("serving")}
SIGKILL = "was killed by SIGKILL (signal 9)"
KILLED: Update = {**RUNNING, **failed(SIGKILL, exit_code=-9, ended_at=5.0)}
EARLIER, LATER = {**KILLED, "ended_at": 4.0}, {**KILLED, "ended_at": 9.0}
NEVER_RAN = {key: value for key, value in KILLED.items() if key != "running_at"}
SERVED: States = {
    "chief_0": [CHIEF],
    "worker_0": [SERVING],
    "worker_1": [KILLED],
    "ps_0": [SERVING],
}
LOST = failed(log="UnavailableError: Connection reset by peer\n")
COMPLETED = "all ranks completed"
DONE: Told = [done()]
LATE = "did not end within 1 s (train_job_non_training_exit_timeout)"
ALONE: Update = {"alone": True, **RUNNING}


def test_a_rank_that_trains_alone_is_named_and_waited_for_in_vain(gang: Make) -> None:
    """The other rank waits in TensorFlow for it, and makes no step."""
    hosts = Hosts(worker_0=[RUNNING], worker_1=[*[ALONE] * 5, {**done(), "alone": True}])
    watched = gang(hosts, start_timeout=1.0)
    outcome = watched.follow()
    assert (outcome.state, outcome.root_cause, outcome.cause) == ("failed", "worker-1", "alone")
    assert "worker-0 waited for this rank" in outcome.message
    assert "leave TF_CONFIG unchanged" in outcome.message
    (said,) = [one for one in notices_of(watched) if one["kind"] == "alone"]
    assert said["task"] == "worker-1"


def test_others_that_fail_have_waited_for_a_rank_that_trained_alone(gang: Make) -> None:
    alone = {**done(), "alone": True}
    hosts = Hosts(worker_0=[*[RUNNING] * 5, LOST], worker_1=[alone])
    assert gang(hosts).follow().root_cause == "worker-1"


def test_ranks_that_train_alone_go_on(gang: Make) -> None:
    """A rank that makes steps, or is at work, does not wait for another one."""
    alone = {**done(), "alone": True}
    for told in (CHIEF, *[{**RUNNING, "load": {"t": 0.0, "cpu_s": 0.0}}]):
        hosts = Hosts(
            worker_0=[{**told, "load": {"t": n / 10, "cpu_s": n / 10}} for n in range(200)],
            worker_1=[alone],
        )
        hosts.complete(1.5, "worker-0")
        watched = gang(hosts, start_timeout=0.5)
        assert watched.follow().state == "completed"
        watched.close()


@pytest.mark.parametrize(
    ("states", "phases", "message"),
    [
        ({"chief_0": DONE, "ps_0": [RUNNING]}, "completed running", COMPLETED),
        (  # tasks that end by themselves get time to do so
            {"chief_0": DONE, "ps_0": [*[SERVING] * 20, done()], "evaluator_0": [RUNNING]},
            "completed completed running",
            COMPLETED,
        ),
        ({"chief_0": DONE, "ps_0": [SERVING]}, "completed running", LATE),
        ({"chief_0": DONE, "ps_0": [KILLED]}, "completed failed", SIGKILL),
        # A host that is unreachable for a while does not end the job.
        ({"worker_0": [RUNNING, *[GONE] * 5, done()]}, "completed", COMPLETED),
    ],
)
def test_how_a_gang_completes(gang: Make, states: States, phases: str, message: str) -> None:
    watched = gang(Hosts(**states), non_training_exit_timeout=1.0)
    if message != COMPLETED:
        message = f"the training completed; ps-0 on host-of-ps-0 {message}"
    assert watched.follow() == GangOutcome("completed", None, message)
    assert [view.phase for view in watched.views] == phases.split()


@pytest.mark.parametrize(
    ("states", "root_cause", "message"),
    [
        # The chief or a parameter server is named, not a worker that was lost before.
        (SERVED | {"chief_0": [CHIEF, {**CHIEF, **LATER}]}, "chief-0", SIGKILL),
        (SERVED | {"ps_0": [SERVING, LATER]}, "ps-0", SIGKILL),
        # The gang ends if a worker is lost before the training begins, or never ran.
        (SERVED | {"chief_0": [BEGINNING]}, "worker-1", SIGKILL),
        (SERVED | {"worker_1": [NEVER_RAN]}, "worker-1", SIGKILL),
        # A training cannot continue without any worker.
        (
            SERVED | {"worker_0": [SERVING, EARLIER], "worker_1": [SERVING, KILLED]},
            "worker-0",
            SIGKILL,
        ),
        ({"worker_0": [LOST], "worker_1": [{"phase": "running"}, KILLED]}, "worker-1", SIGKILL),
        # If all ranks only lost contact, the first one is named.
        ({"worker_0": [{"phase": "running"}], "worker_1": [LOST]}, "worker-1", LOST["log"].strip()),
        (
            {"worker_0": [{"phase": "running"}], "worker_1": [{"phase": "absent"}]},
            "worker-1",
            "did not start within 1 s",
        ),
    ],
)
def test_the_root_cause_is_named(gang: Make, states: States, root_cause: str, message: str) -> None:
    outcome = gang(Hosts(**states), start_timeout=1.0).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", root_cause)
    assert outcome.message.startswith(f"{root_cause} on host-of-{root_cause} ")
    assert message in outcome.message


def test_of_ranks_that_all_fail_at_once_one_with_an_error_of_its_own_is_named(gang: Make) -> None:
    log = "UnavailableError: Error reported from /job:worker/task:1: the tasks are unhealthy\n"
    fell: Told = [failed("exited with code 1", log=log, ended_at=98.0)]
    own: Told = [failed("exited with code 1: ValueError: label 12", log=log, ended_at=99.0)]
    hosts = Hosts(worker_0=fell, worker_1=own, worker_2=list(fell))
    outcome = gang(hosts, **three(set())).follow()
    assert outcome.root_cause == "worker-1"
    assert "ValueError: label 12" in outcome.message


AT_12 = record("training", step=12, steps=20)
LEFT = {"phase": "completed", "exit_code": 0, "progress": AT_12, "ended_at": 10.0}
WAITED = failed(log="UnavailableError: Socket closed\n", ended_at=30.0, progress=AT_12)
HUNG = failed("has made no step", cause="hung", exit_code=-6, stuck_in_framework=True)
OWN_ERROR = failed("exited with code 1: ValueError: label 12", ended_at=31.0)
AFTER_12 = (
    "left after step 12 of 20 while the others kept training: worker-{0} on host-of-worker-{0} "
)


@pytest.mark.parametrize(
    ("states", "cause", "words"),
    [
        ({"worker_0": [WAITED], "worker_1": [LEFT]}, cause_names.LEFT, AFTER_12.format(0)),
        ({"worker_1": [LEFT], "worker_0": [WAITED]}, cause_names.LEFT, AFTER_12.format(0)),
        (
            {"worker_0": [HUNG | {"ended_at": 300.0}], "worker_1": [LEFT]},
            cause_names.LEFT,
            "no step",
        ),
        (  # its process is still ending when the others notice that its connections are closed
            {"worker_0": [WAITED | {"ended_at": 9.0}], "worker_1": [*[STEPPING] * 20, LEFT]},
            cause_names.LEFT,
            AFTER_12.format(0),
        ),
        (  # the first of two to leave, though the second one's record is older
            {
                "worker_0": [LEFT | {"ended_at": 12.0}],
                "worker_2": [WAITED],
                "worker_1": [LEFT],
            },
            cause_names.LEFT,
            AFTER_12.format(2),
        ),
        (
            {"worker_0": [WAITED], "worker_1": [LEFT | {"progress": ""}]},
            cause_names.LEFT,
            "left while the others continued",
        ),
    ],
)
def test_a_rank_that_left_is_at_fault_and_not_one_that_lost_it(
    gang: Make, states: States, cause: str, words: str
) -> None:
    outcome = gang(Hosts(**states)).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", cause)
    assert words in outcome.message.splitlines()[0]
    assert "the same number of steps" in outcome.message


SERVER_REFUSED = failed(
    "exited with code 1: ConnectionRefusedError: [Errno 111] Connection refused",
    cause=end_causes.EXIT,
    ended_at=31.0,
)


@pytest.mark.parametrize(
    "others",
    [{}, {"worker_1": [LEFT], "worker_2": [LEFT]}, {"worker_1": [STEPPING], "worker_2": [LEFT]}],
)
def test_a_server_outside_of_the_gang_may_have_refused_a_connection(
    gang: Make, others: States
) -> None:
    """If all ranks can reach each other, the network is not blamed, nor a rank that completed."""
    outcome = gang(Hosts(worker_0=[SERVER_REFUSED], **others), **three(set())).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-0", end_causes.EXIT)
    assert "ConnectionRefusedError" in outcome.message.splitlines()[0]


@pytest.mark.parametrize(
    ("states", "root_cause", "cause"),
    [
        # It has completed normally; the other rank failed by itself afterwards.
        ({"worker_0": [OWN_ERROR], "worker_1": [LEFT]}, "worker-0", None),
        ({"worker_0": [WAITED], "worker_1": [LEFT], "worker_2": [OWN_ERROR]}, "worker-2", None),
        # It completed long after the other rank had failed.
        (
            {"worker_0": [WAITED], "worker_1": [LEFT | {"ended_at": 90.0}]},
            "worker-0",
            cause_names.NETWORK,
        ),
        (
            {"worker_0": [WAITED], "worker_1": [LEFT], "worker_2": [STEPPING | {"frozen": True}]},
            "worker-2",
            cause_names.FROZEN,
        ),
    ],
)
def test_a_rank_that_completed_is_not_always_one_that_left(
    gang: Make, states: States, root_cause: str, cause: str | None
) -> None:
    outcome = gang(Hosts(**states)).follow()
    assert outcome.root_cause == root_cause
    assert cause is None or outcome.cause == cause


def test_weights_that_differ_fail_the_job(gang: Make) -> None:
    outcome = gang(Hosts(worker_0=[done(sha="a" * 64)], worker_1=[done(sha="b" * 64)])).follow()
    assert (outcome.state, outcome.root_cause, outcome.cause) == (
        "failed",
        None,
        cause_names.WEIGHTS,
    )
    assert "aaaaaaaaaaaa on worker-0; bbbbbbbbbbbb on worker-1" in outcome.message


@pytest.mark.parametrize(
    ("lost", "message"), [(KILLED, SIGKILL), (GONE, "cannot be reached: gone")]
)
def test_a_lost_worker_ends_no_training(gang: Make, lost: Update | Exception, message: str) -> None:
    hosts = Hosts(**SERVED | {"worker_1": [SERVING, lost]})
    watched = gang(hosts, unreachable_timeout=0.3)
    hosts.complete(1.2, "chief-0")
    outcome = watched.follow()
    assert outcome.state == "completed"
    assert f"; worker-1 on host-of-worker-1 {message}" in outcome.message
    if lost is KILLED:
        ranks = result_of("x", outcome, watched.views, attempts=1)["ranks"]
        assert (ranks[2]["phase"], ranks[2]["exit_code"]) == ("failed", -9)


def test_a_rank_that_seems_frozen_is_named(gang: Make) -> None:
    said = "TrainingError: worker-1 (192.0.2.1:12345) was unresponsive for 10 s"
    reason = f"exited with code 1: {said}"
    fell = failed(reason, f"{said}\n")
    outcome = gang(Hosts(worker_0=[fell], worker_1=[{"phase": "running"}])).follow()
    assert outcome.root_cause == "worker-1"
    assert outcome.message.splitlines()[0] == (
        f"worker-1 on host-of-worker-1 is unreachable: worker-0 on host-of-worker-0 {reason}"
    )
    assert outcome.cause == cause_names.NETWORK


#: A rank that makes a step with each update.
WALKING = [{**RUNNING, "progress": record("training", step=n)} for n in range(400)]


def probing(word: str) -> dict[str, Any]:
    """Return arguments with which a gang of two asks worker-0 whether it reaches worker-1."""
    reached = {"worker-0": "open", "worker-1": word}
    found = {"reached": reached, "listening": True, "own": True, "addresses": [], "proxy": ""}
    peers = {"worker-0": ("a", 1), "worker-1": ("b", 1)}
    return {"peers": peers, "probe": lambda target, peers: dict(found)}


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({}, "no other rank is making progress either"),
        (probing("timeout"), "other ranks cannot reach it either (worker-0: timeout)"),
    ],
)
def test_a_host_away_is_lost_if_confirmed(gang: Make, evidence: dict[str, Any], words: str) -> None:
    hosts = Hosts(worker_0=[STEPPING], worker_1=[STEPPING, GONE])
    outcome = gang(hosts, unreachable_timeout=0.5, **evidence).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", cause_names.UNREACHABLE)
    assert "was unreachable for 0.5 s (train_job_unreachable_timeout): gone; " in outcome.message
    assert words in outcome.message
    assert outcome.unreachable == ["host-of-worker-1"]


def three(*answers: set[tuple[str, str]]) -> dict[str, Any]:
    """Return arguments with which three hosts report broken paths, once for each answer."""
    tasks = [f"worker-{index}" for index in range(3)]
    asked: dict[str, int] = defaultdict(int)

    def probe(target: Target, peers: Any) -> dict[str, Any]:
        broken = answers[min(asked[target.task], len(answers) - 1)]
        asked[target.task] += 1
        how = {task: "timeout" if (target.task, task) in broken else "open" for task in tasks}
        return {"reached": how, "listening": True, "own": True, "addresses": [], "proxy": ""}

    return {"peers": {task: (task, 1) for task in tasks}, "probe": probe}


def accusing(task: str, ended_at: float) -> Update:
    log = f"TrainingError: lost contact with {task}: UnavailableError: Socket closed\n"
    return STEPPING | failed(log=log, ended_at=ended_at)


INTO_1 = {("worker-0", "worker-1"), ("worker-2", "worker-1")}


def test_the_word_of_a_rank_that_is_cut_off_counts_less_than_what_the_hosts_find(
    gang: Make,
) -> None:
    cut_off: Told = [STEPPING, accusing("worker-0", 10.0)]
    hosts = Hosts(worker_0=[STEPPING], worker_1=cut_off, worker_2=[STEPPING])
    outcome = gang(hosts, **three(INTO_1)).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", cause_names.NETWORK)
    assert "worker-1 on host-of-worker-1 cannot be reached by worker-0, worker-2" in outcome.message


def test_what_the_hosts_found_before_the_gang_fell_counts_though_all_is_open_again(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "PROBE_AFTER", 0.1)
    falls: Told = [*[STEPPING] * 60, accusing("worker-0", 10.0)]
    hosts = Hosts(worker_0=[STEPPING], worker_1=falls, worker_2=[STEPPING])
    evidence = three(INTO_1, set())
    monkeypatch.setattr(verdict, "PROBE_AGAIN", 60.0)
    outcome = gang(hosts, **evidence).follow()
    assert outcome.root_cause == "worker-1"
    assert "cannot be reached by worker-0, worker-2" in outcome.message


def test_the_word_of_one_rank_is_not_enough_while_others_will_report_soon(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "WORDS_WAIT", 20.0)
    second = [*[STEPPING] * 100, accusing("worker-1", 11.0)]
    hosts = Hosts(
        worker_0=[accusing("worker-1", 10.0)], worker_1=[STEPPING], worker_2=[STEPPING, *second]
    )
    outcome = gang(hosts, **three(set())).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", cause_names.NETWORK)
    assert "could not be reached by the others" in outcome.message


def test_of_two_that_lost_each_other_neither_is_named(gang: Make) -> None:
    hosts = Hosts(worker_0=[accusing("worker-1", 10.0)], worker_1=[accusing("worker-0", 10.1)])
    outcome = gang(hosts, **probing("open")).follow()
    assert (outcome.root_cause, outcome.cause) == (None, cause_names.NETWORK)
    first, step, _ = outcome.message.splitlines()
    both = "worker-0 on host-of-worker-0 and worker-1 on host-of-worker-1"
    assert first.startswith(f"{both} lost contact with each other: worker-0 on host-of-worker-0 ")
    assert step == "the last step reported was 7"


def test_of_a_gang_that_fell_at_the_start_the_rank_is_named_that_nobody_reaches(gang: Make) -> None:
    hosts = Hosts(worker_0=[LOST], worker_1=[LOST])
    outcome = gang(hosts, **probing("timeout")).follow()
    assert (outcome.root_cause, outcome.cause) == ("worker-1", cause_names.BLOCKED)


@pytest.mark.parametrize(
    ("states", "evidence"),
    [
        ([RUNNING], {}),
        ([STEPPING], probing("open")),
        ([STEPPING], probing("refused")),
        (WALKING, probing("timeout")),
    ],
)
def test_what_is_unknown_ends_no_job(gang: Make, states: Told, evidence: dict[str, Any]) -> None:
    hosts = Hosts(worker_0=states, worker_1=[states[0], GONE])
    watched = gang(hosts, unreachable_timeout=0.3, **evidence)
    hosts.complete(1.5, "worker-0", "worker-1")
    assert watched.follow().state == "completed"


def test_a_job_that_was_stopped_elsewhere(gang: Make) -> None:
    stopped = {"phase": "stopped", "reason": "was stopped"}
    hosts = Hosts(worker_0=[{"phase": "running"}, stopped], worker_1=[{"phase": "running"}])
    outcome = gang(hosts).follow()
    assert outcome.state == "stopped"


def test_all_ranks_of_a_job_that_is_stopped_have_time_to_end(gang: Make) -> None:
    stopped = {"phase": "stopped", "reason": "was stopped by anna", "ended_at": time.time()}
    hosts = Hosts(worker_0=[stopped], worker_1=[{"phase": "running"}])
    watched = gang(hosts, grace=20.0)
    threading.Timer(0.8, lambda: hosts.states.update({"worker-1": iter([stopped])})).start()
    outcome = watched.follow()
    assert (outcome.state, outcome.message) == ("stopped", "the job was stopped by anna")
    assert [view.phase for view in watched.views] == ["stopped"] * 2


def test_a_stop_that_ends_one_rank_after_the_other_has_more_time(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "NOTICE", 0.1)
    stopped = {"phase": "stopped", "reason": "was stopped by anna", "ended_at": time.time()}
    hosts = Hosts(**{f"worker_{index}": [{"phase": "running"}] for index in range(5)})
    watched = gang(hosts, grace=0.9)
    for index in range(4):
        again = {f"worker-{index}": iter([stopped])}
        threading.Timer(0.6 * index, hosts.states.update, [again]).start()
    began = time.monotonic()
    assert watched.follow().state == "stopped"
    assert time.monotonic() - began > 1.8 + 0.9, "the last rank has its grace period, too"
    assert [view.phase for view in watched.views] == ["stopped"] * 4 + ["running"]


@pytest.mark.parametrize(("ago", "state"), [(1.0, "stopped"), (-1.0, "failed")])
def test_a_rank_that_loses_a_stopped_one_is_no_failure(gang: Make, ago: float, state: str) -> None:
    """It is a failure if the rank failed first and another control node stopped the others."""
    now = time.time()
    lost = failed("exited with code 1: UnavailableError: lost", ended_at=now)
    lost["log"] = "UnavailableError: Connection reset by peer\n"
    stopped = {"phase": "stopped", "reason": "was stopped by anna", "ended_at": now - ago}
    assert gang(Hosts(worker_0=[stopped], worker_1=[lost])).follow().state == state


def noticed(seconds: float | None = 30.0, **about: Any) -> Update:
    """Return the report of a rank whose host got a notice now."""
    found = {"source": "gcp", "at": time.time()}
    return {**STEPPING, "preemption": found if seconds is None else {**found, "seconds": seconds}}


LEAVES = "the job leaves host-of-worker-1: notice from Google Cloud, 30 s in advance"
TAKEN: Update = {
    **RUNNING,
    "phase": "stopped",
    "cause": "preempted",
    "reason": "was stopped because its host will be reclaimed",
    "ended_at": 8.0,
}
SIGTERM = {**RUNNING, **failed("was killed by SIGTERM (signal 15)", exit_code=-15, ended_at=5.0)}


@pytest.mark.parametrize(
    ("other", "about"),
    [
        (STEPPING, {}),
        (LOST, {}),
        (LOST, TAKEN),  # its supervisor ended it, without a control node
        (STEPPING, {**SIGTERM, "cause": "signal"}),  # the host was shut down
        (LOST, {**RUNNING, "phase": "failed", "cause": "reboot", "reason": "rebooted"}),
    ],
)
def test_a_gang_leaves_a_host_that_will_be_reclaimed(
    gang: Make, other: Update, about: Update
) -> None:
    hosts = Hosts(worker_0=[STEPPING, other], worker_1=[STEPPING, {**noticed(), **about}])
    outcome = gang(hosts).follow()
    assert (outcome.state, outcome.root_cause, outcome.cause) == ("stopped", None, "preempted")
    assert outcome.message == LEAVES
    assert outcome.grace is not None
    assert 1 <= outcome.grace <= 27, "the ranks save before the host is reclaimed"
    assert outcome.unreachable == []


def test_the_usual_time_to_save_applies_if_the_length_of_a_notice_is_unknown(gang: Make) -> None:
    outcome = gang(Hosts(worker_0=[STEPPING], worker_1=[noticed(None)])).follow()
    assert (outcome.cause, outcome.grace) == ("preempted", None)


@pytest.mark.parametrize(
    ("other", "about", "state", "cause"),
    [
        # The script failed by itself.
        (failed("exited with code 1: KeyError: 'a'", cause="exit"), {}, "failed", "exit"),
        (STEPPING, failed("exited with code 1: KeyError: 'a'", cause="exit"), "failed", "exit"),
        # A user stopped the job.
        (
            {**TAKEN, "cause": "stopped", "reason": "was stopped by anna"},
            {**TAKEN, "cause": "stopped", "reason": "was stopped by anna"},
            "stopped",
            "",
        ),
        (done(), done(), "completed", ""),
    ],
)
def test_what_ended_a_gang_before_its_host_was_reclaimed(
    gang: Make, other: Update, about: Update, state: str, cause: str
) -> None:
    hosts = Hosts(worker_0=[other], worker_1=[{**noticed(), **about}])
    outcome = gang(hosts).follow()
    assert (outcome.state, outcome.cause) == (state, cause)


def test_a_warning_of_a_cloud_ends_nothing(gang: Make) -> None:
    at_risk = {**STEPPING, "at_risk": True}
    watched = gang(Hosts(worker_0=[*[STEPPING] * 5, done()], worker_1=[*[at_risk] * 5, done()]))
    assert watched.follow().state == "completed"
    (said,) = notices_of(watched)
    assert said["kind"] == "at_risk"
    assert "host-of-worker-1: the cloud warns" in said["text"]


def test_an_evaluator_is_left_when_the_training_is_done(gang: Make) -> None:
    hosts = Hosts(chief_0=[done()], evaluator_0=[{**noticed(), **TAKEN}])
    assert gang(hosts).follow().state == "completed"
