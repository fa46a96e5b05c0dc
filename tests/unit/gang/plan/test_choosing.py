"""Which hosts an attempt gets by the results of their checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.hostile import FACTS
from tests.unit.gang.made_up_play import a_play
from train.gang import login_failures
from train.gang.errors import NothingAnsweredError, UserError
from train.gang.plan import choosing

AWAY = {"unreachable": True, "msg": login_failures.failure("no-route").text}
NAMES = ("node-0", "node-1", "node-2")


def fine(host: str) -> dict[str, Any]:
    return {"host": {**FACTS, "machine": host, "address": host}}


def choose(results: dict[str, Any], hosts: Any = NAMES, **changed: Any) -> Any:
    """Choose hosts with the results of their checks; the others are fine."""
    checks = {name: results.get(name, fine(name)) for name in NAMES}
    groups = {"chief": [], "worker": ["node-0", "node-1"], "spare": ["node-2"]}
    args = {"groups": groups, "attempt": 1, "checks": "checks", "min_workers": 0}
    args |= {"without": {}, "automatic": False}
    return choosing.choose_hosts(a_play(checks, hosts), {**args, **changed})


def test_hosts_that_are_fine_are_chosen() -> None:
    chosen = choose({})
    assert chosen["hosts"] == ["node-0", "node-1"]
    assert (chosen["left_out"], chosen["warnings"]) == ({}, [])


def test_a_spare_takes_over_and_the_lost_host_is_explained_once() -> None:
    chosen = choose({"node-0": AWAY})
    assert chosen["hosts"] == ["node-1", "node-2"]
    why = f"unreachable: {login_failures.KINDS['no-route'].sentence}"
    assert chosen["left_out"] == {"node-0": why}
    assert chosen["warnings"] == [f"node-0 is excluded: {why}"]


def test_the_refusal_leaves_the_reason_to_the_hosts_own_failure() -> None:
    with pytest.raises(UserError, match=r"^node-0: unreachable: the job has 1 of 2 workers left"):
        choose({"node-0": AWAY, "node-2": AWAY})


def test_if_no_host_answers_nothing_was_started() -> None:
    with pytest.raises(NothingAnsweredError, match="no host answered; nothing was started"):
        choose(dict.fromkeys(NAMES, AWAY))


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"failed": True, "msg": "port 12345 is taken\n"}, "node-1: port 12345 is taken"),
        ({}, "node-1: was not checked"),
        ({"host": {**FACTS, "cores": "many"}}, "node-1: its report is malformed: cores is not"),
        ({"msg": "\x1b]0;evil\x07 no"}, "node-1: "),
    ],
)
def test_a_first_attempt_needs_all_hosts_that_answer(result: Any, why: str) -> None:
    with pytest.raises(UserError) as refused:
        choose({"node-1": result})
    assert str(refused.value).startswith(why)
    assert "\x1b" not in str(refused.value)


def test_hosts_that_are_not_in_the_play_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match=r"^node-1 and node-2: is not in .* without --limit"):
        choose({}, hosts=["node-0"])


def test_a_later_attempt_leaves_out_a_host_that_is_not_fine_and_keeps_its_order(
    tmp_path: Path,
) -> None:
    (tmp_path / "night").mkdir()
    ranks = [{"host": f"node-{n}", "task": f"worker-{1 - n}"} for n in (1, 0)]
    manifest = {"job": "night", "attempt": 1, "ranks": ranks, "hosts": {}}
    (tmp_path / "night/manifest.json").write_text(json.dumps(manifest))
    later = {"attempt": 2, "job": "night", "runs_dir": str(tmp_path), "min_workers": 1}
    assert choose({}, **later)["hosts"] == ["node-1", "node-0"]
    full = {"failed": True, "msg": "the disk is full"}
    chosen = choose({"node-0": full, "node-2": full}, **later)
    assert chosen["hosts"] == ["node-1"]
    assert chosen["left_out"] == {"node-0": "the disk is full"}
    unwanted = dict.fromkeys(("node-0", "node-2"), "the job could not start with it")
    chosen = choose({}, **later, without=unwanted)
    assert (chosen["hosts"], chosen["left_out"]) == (["node-1"], {"node-0": unwanted["node-0"]})


def test_a_later_attempt_leaves_out_a_host_with_another_version(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    ranks = [{"host": f"node-{n}", "task": f"worker-{n}"} for n in (0, 1)]
    versions = {"tensorflow": ["2.21.0"], "python": "3.11.7"}
    manifest = {"job": "night", "attempt": 1, "ranks": ranks, "hosts": {}, "versions": versions}
    (tmp_path / "night/manifest.json").write_text(json.dumps(manifest))
    later = {"attempt": 2, "job": "night", "runs_dir": str(tmp_path), "min_workers": 1}

    def with_version(host: str, version: str) -> dict[str, Any]:
        return {"host": {**fine(host)["host"], "tensorflow": version}}

    found = {name: with_version(name, "2.21.0") for name in NAMES}
    chosen = choose({**found, "node-1": with_version("node-1", "2.20.0")}, **later)
    assert chosen["hosts"] == ["node-0", "node-2"]
    why = "it has tensorflow 2.20.0, but the job trains with 2.21.0"
    assert chosen["left_out"] == {"node-1": why}
    # If all hosts were upgraded, the job continues with the new version.
    upgraded = {name: with_version(name, "2.22.0") for name in NAMES}
    chosen = choose(upgraded, **later)
    assert (chosen["hosts"], chosen["left_out"]) == (["node-0", "node-1"], {})
    # A spare with the old version changes nothing, nor does a host whose version is unknown.
    for result in (with_version("node-2", "2.21.0"), fine("node-2")):
        chosen = choose({**upgraded, "node-2": result}, **later)
        assert (chosen["hosts"], chosen["left_out"]) == (["node-0", "node-1"], {})
    chosen = choose({**upgraded, "node-1": fine("node-1")}, **later)
    assert chosen["hosts"] == ["node-0", "node-1"]
    # Without enough other hosts, the plan names the different versions.
    mixed = {**found, "node-1": with_version("node-1", "2.20.0"), "node-2": AWAY}
    assert choose(mixed, **{**later, "min_workers": 0})["hosts"] == ["node-0", "node-1"]


@pytest.mark.parametrize(
    ("workers", "least", "chosen"),
    [
        (["node-0", "node-1", "node-2"], 0, ["node-0", "node-1"]),  # one is new
        (["node-2", "node-1"], 0, ["node-1", "node-2"]),  # one may only have a new name
        (["node-1"], 1, ["node-1"]),
        (["node-1"], 0, None),
        ([], 1, None),
    ],
)
def test_an_automatic_restart_keeps_the_size_of_the_job(
    tmp_path: Path, workers: list[str], least: int, chosen: list[str] | None
) -> None:
    """Another control node may follow the job with another inventory."""
    (tmp_path / "night").mkdir()
    ranks = {f"worker-{n}": f"node-{n}" for n in (0, 1)}
    listed = [{"host": host, "task": task} for task, host in ranks.items()]
    attempts = [{"ranks": ranks, "left_out": {}}]
    manifest = {"job": "night", "attempt": 1, "ranks": listed, "hosts": {}, "attempts": attempts}
    (tmp_path / "night/manifest.json").write_text(json.dumps(manifest))
    groups = {"chief": [], "worker": workers, "spare": []}
    later = {"attempt": 2, "job": "night", "runs_dir": str(tmp_path), "min_workers": least}
    if chosen is None:
        words = rf"the inventory has {len(workers)} of the job's 2 workers: use .* restart .*night"
        with pytest.raises(UserError, match=words):
            choose({}, **later, groups=groups, automatic=True)
        return
    found = choose({}, **later, groups=groups, automatic=True)
    assert (found["hosts"], found["left_out"]) == (chosen, {})
    new = [host for host in workers if host not in chosen]
    assert [line.split(" is not used")[0] for line in found["warnings"]] == new
    # A user who starts the next attempt chooses its hosts.
    if workers:
        assert len(choose({}, **later, groups=groups)["hosts"]) == len(workers)


def test_one_machine_under_two_names_is_a_warning() -> None:
    chosen = choose({"node-1": {"host": {**FACTS, "machine": "node-0"}}})
    (warning,) = chosen["warnings"]
    assert warning.startswith(
        "node-0 and node-1 connect to the same machine at different addresses"
    )
