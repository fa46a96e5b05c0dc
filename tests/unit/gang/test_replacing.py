"""Tests when hosts that a job has lost are replaced, and what the job does afterwards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.gang import connections, local_command, replacing, restarting
from train.gang.errors import UnreachableError, UserError

HOSTS = ["w0", "w1", "w2"]
NOTHING = {"outcome": "", "stopped": "", "hosts": [], "ranks": []}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the folder of a job of three hosts, whose attempt has ended."""
    folder = tmp_path / "runs/night"
    folder.mkdir(parents=True)
    facts = {"root": "/data/train", "host_python": "/usr/bin/python3"}
    manifest = {"job": "night", "attempt": 1, "hosts": dict.fromkeys(HOSTS, facts)}
    manifest["ranks"] = [{"host": host} for host in HOSTS]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that are shown."""
    lines: list[str] = []
    monkeypatch.setattr(connections, "say", lines.append)
    monkeypatch.setattr(replacing, "_PAUSE_S", 0.01)
    monkeypatch.setattr(restarting, "_POLL_S", 0.02)
    monkeypatch.setattr(local_command, "_POLL_S", 0.01)
    return lines


class Play:
    """A play that knows how its hosts answer, and which variables the inventory has.

    Attributes:
        away: hosts that do not answer.
        stopped: how the job was stopped on a host.
        machines: the machines of further ranks.
        inventory: the hosts that the inventory has now.
    """

    host = "w0"

    def __init__(self, command: str, away: Sequence[str] = ()) -> None:
        self.command, self.away, self.stopped = command, [*away], ""
        self.machines: dict[str, str] = {}
        self.inventory = [*HOSTS, "s0"]
        self.asked: list[str] = []

    def values(self, host: str, *names: str) -> Mapping[str, Any]:
        given = {replacing.COMMAND: self.command, connections.SLOT: 1}
        return {name: given[name] for name in names}

    def call(self, host: str, purpose: str, python: str, request: Any) -> Mapping[str, Any]:
        self.asked.append(host)
        if host in self.away:
            raise UnreachableError("gone", "no-route")
        return {"stopped": self.stopped}

    def run(self, host: str, *_: Any) -> Mapping[str, Any]:
        return self.call(host, "", "", {})

    def machine_of(self, host: str) -> str:
        return self.machines.get(host, host)

    def update_host(self, host: str) -> Any:
        return {"add_host": {"host_name": host}} if host in self.inventory else None


def replace(run_dir: Path, play: Any, **changed: Any) -> Any:
    given: dict[str, Any] = {"run_dir": str(run_dir), "groups": {"worker": HOSTS}}
    given |= {"lost_hosts": ["w1"]}
    given |= {"leaving": {}, "before": {"then": "restart.yml"}, "controller": "", "timeout": 30.0}
    return replacing.replace(play, {**given, **changed})


def notices(run_dir: Path) -> list[str]:
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    found = [json.loads(line)["notice"] for line in lines]
    assert {notice["kind"] for notice in found} == {"replacing"}
    return [notice["text"] for notice in found]


def test_lost_hosts_are_replaced(run_dir: Path, said: list[str]) -> None:
    script = 'echo "$TRAIN_JOB $TRAIN_ATTEMPT $TRAIN_LOST_HOSTS $TRAIN_RUN_DIR"'
    found = replace(run_dir, Play(script, ["w1", "w2"]), lost_hosts=["w1", "w2"])
    assert found == {**NOTHING, "outcome": "replaced", "hosts": ["w1", "w2"]}
    log = run_dir / "replace.log"
    assert f"night 2 w1,w2 {run_dir}\n" in log.read_text()
    assert said == notices(run_dir)
    assert said[0] == f"replacing w1 and w2 (train_job_replace), log: {log}"
    assert said[1].endswith(" s: attempt 2 follows")
    assert script not in "".join(said)


@pytest.mark.parametrize(
    "changed",
    [
        {"lost_hosts": []},  # an ordinary failure, or the job grows
        {"lost_hosts": ["unknown"]},
        {"controller": "w0"},  # another host watches the job
        {"before": {"then": "restart.yml", "refusals": 1, "gone": []}},
        {"before": {"then": "restart.yml", "refusals": 2, "gone": ["w1"], "replacement": "failed"}},
    ],
)
def test_nothing_is_replaced(run_dir: Path, changed: Any) -> None:
    assert replace(run_dir, Play("exit 1", ["w1"]), **changed) == NOTHING
    assert not (run_dir / "replace.log").exists()


def test_without_a_command_no_host_is_asked(run_dir: Path) -> None:
    play = Play(" ", ["w1"])
    assert replace(run_dir, play) == NOTHING
    assert play.asked == []


def test_the_control_node_has_no_network(run_dir: Path) -> None:
    assert replace(run_dir, Play("exit 1", HOSTS), lost_hosts=["w1"]) == NOTHING
    # If hosts got notices, all of them may be gone.
    leaving = {host: {"until": time.time(), "may_be_off": False} for host in HOSTS}
    found = replace(run_dir, Play("true", HOSTS), lost_hosts=[], leaving=leaving)
    assert (found["outcome"], found["hosts"]) == ("replaced", HOSTS)


@pytest.mark.parametrize(("away", "outcome"), [(["w1"], ""), (["w1", "s0"], "replaced")])
def test_a_spare_host_is_enough_if_it_answers(run_dir: Path, away: list[str], outcome: str) -> None:
    groups = {"worker": HOSTS, "spare": ["s0"]}
    assert replace(run_dir, Play("true", away), groups=groups)["outcome"] == outcome


def test_hosts_that_could_not_be_reached_at_the_start_are_replaced_once(run_dir: Path) -> None:
    before = {"then": "restart.yml", "refusals": 1, "gone": ["w1"]}
    # What the watch has reported is outdated.
    found = replace(run_dir, Play("true", ["w1"]), before=before, lost_hosts=["w2"])
    assert (found["outcome"], found["hosts"]) == ("replaced", ["w1"])


def test_the_end_of_a_notice_is_awaited(run_dir: Path) -> None:
    until = time.time() + 0.5
    # A host that no longer answers may still be listed by its cloud.
    leaving = {"w1": {"until": until, "may_be_off": False}}
    script = "date +%s.%N"
    found = replace(run_dir, Play(script, ["w1"]), lost_hosts=[], leaving=leaving)
    assert found["outcome"] == "replaced"
    assert float((run_dir / "replace.log").read_text().splitlines()[1]) > until


@pytest.mark.parametrize(("away", "limit"), [(["w1"], 1e6), ([], 0.2)])
def test_a_notice_without_a_length_ends_when_the_host_is_off_or_in_time(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, away: list[str], limit: float
) -> None:
    monkeypatch.setattr(replacing, "_LONGEST_S", limit)
    leaving = {"w1": {"until": time.time() + 1e6, "may_be_off": True}}
    found = replace(run_dir, Play("true", away), lost_hosts=[], leaving=leaving)
    assert found["outcome"] == "replaced"


@pytest.mark.parametrize(
    ("command", "timeout", "problem"),
    [
        ("echo token-of-mine; exit 3", 30.0, "exited with code 3"),
        ("sleep 600", 0.2, "did not end within 0.2 s (train_job_replace_timeout)"),
    ],
)
def test_a_command_that_fails_ends_nothing(
    run_dir: Path, said: list[str], command: str, timeout: float, problem: str
) -> None:
    found = replace(run_dir, Play(command, ["w1"]), timeout=timeout)
    assert found == {**NOTHING, "outcome": "failed"}
    text = f"w1 could not be replaced: train_job_replace {problem}, log: {run_dir}/replace.log"
    assert said[1:] == [text]


def test_a_command_that_cannot_be_started(
    run_dir: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Any) -> None:
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr(replacing, "LocalCommand", fail)
    assert replace(run_dir, Play("true", ["w1"])) == {**NOTHING, "outcome": "failed"}
    assert "could not be started: Cannot allocate memory" in said[1]


def test_a_stop_ends_the_command(run_dir: Path, tmp_path: Path, said: list[str]) -> None:
    class Stopped(Play):
        """A play of a job that is stopped while the command runs."""

        def call(self, *given: Any) -> Mapping[str, Any]:
            self.stopped = "was stopped" if (tmp_path / "ran").exists() else ""
            return super().call(*given)

    play = Stopped(f"touch {tmp_path}/ran; sleep 600", ["w1"])
    assert replace(run_dir, play) == {**NOTHING, "stopped": "was stopped"}
    assert (run_dir / "replace.log").read_text().endswith(" the command was stopped\n")
    assert len(said) == 1, "a stop is not an error of the command"


def test_a_stop_before_the_command(run_dir: Path) -> None:
    play = Play("exit 1", ["w1"])
    play.stopped = "was stopped"
    leaving = {"w1": {"until": time.time() + 1e6, "may_be_off": True}}
    assert replace(run_dir, play, leaving=leaving) == {**NOTHING, "stopped": "was stopped"}
    assert not (run_dir / "replace.log").exists()


def test_all_hosts_without_a_rank_may_have_new_addresses(run_dir: Path, said: list[str]) -> None:
    play = Play("true", ["w1", "s0", "s1"])
    groups = {"worker": HOSTS, "spare": ["s0", "s1"]}
    found = replace(run_dir, play, groups=groups)
    assert found["hosts"] == ["w1", "s0"]
    assert said[2:] == ["the inventory lacks s1 now: its variables are kept"]


def test_further_ranks_of_a_machine_get_its_new_address(run_dir: Path) -> None:
    groups = {"worker": ["w0", "w1", "w1-slot-1"]}
    manifest = json.loads((run_dir / "manifest.json").read_text())
    manifest["ranks"] = [{"host": host} for host in groups["worker"]]
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    play = Play('echo "hosts: $TRAIN_LOST_HOSTS"', ["w1", "w1-slot-1"])
    play.machines = {"w1-slot-1": "w1"}
    found = replace(run_dir, play, groups=groups, lost_hosts=["w1", "w1-slot-1"])
    assert found["hosts"] == ["w1"]
    assert found["ranks"] == [{"name": "w1-slot-1", "machine": "w1", "slot": 1}]
    assert "hosts: w1\n" in (run_dir / "replace.log").read_text()


def test_an_invalid_inventory_changes_nothing(run_dir: Path, said: list[str]) -> None:
    def fail(host: str) -> None:
        raise UserError("the inventory cannot be read: no")

    play: Any = Play("true", ["w1"])
    play.update_host = fail
    found = replace(run_dir, play)
    assert found == {**NOTHING, "outcome": "replaced"}
    assert said[2:] == ["addresses of new hosts are unknown: the inventory cannot be read: no"]
    assert replacing.update(play, {"name": "w1"}) == {}


def test_variables_are_those_of_the_inventory_now() -> None:
    play: Any = SimpleNamespace(update_host={"w1": {"add_host": {}}}.get)
    assert replacing.update(play, {"name": "w1"}) == {"add_host": {}}
    assert replacing.update(play, {"name": "w2"}) == {}
