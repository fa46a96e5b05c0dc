"""The hosts' answers, merged into one file."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from train.gang import overview
from train.gang.errors import UnreachableError, UserError
from train.gang.job_records import OVERVIEW_FILE
from train.host import usage

USED = {
    **{"cores": 2, "load": 1.0, "memory_total": 4, "memory_free": 2, "disk_total": 4},
    **{"disk_free": 1, "gpus": [], "gpu_error": ""},
}
HELD = {
    **{"state": "started", "job": "x", "task": "worker-0", "user": "eve", "since": 1.0},
    "resources": ["port/1"],
}


class Play:
    """A play whose hosts answer with ``answers``, or raise an error."""

    def __init__(self, answers: Mapping[str, Any], together: Mapping[str, list[str]]) -> None:
        self.answers, self._together = dict(answers), together
        self.hosts = list(together)
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []

    def neighbors(self) -> Mapping[str, list[str]]:
        return self._together

    def values(self, host: str, *names: str) -> Mapping[str, Any]:
        return {names[0]: "~/train", names[1]: "/leases"}

    def call(self, host: str, purpose: str, python: str, request: Any, archive: str) -> Any:
        self.asked.append((host, python, request))
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(**more: Any) -> dict[str, Any]:
    known = {"compiled_for": "3.8", "usage": USED, "jobs": [], "owners": {}, "holds": []}
    return {**known, **more}


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that follows a play, and one that returns what was written."""
    monkeypatch.setattr(overview, "_RETRY_S", 0.02)
    path = tmp_path / OVERVIEW_FILE
    begun: list[overview.Overview] = []

    def follow(play: Any) -> Any:
        begun.append(overview.Overview(play, 0.02))
        threading.Thread(target=begun[0].follow, args=(path,), daemon=True).start()
        return lambda: json.loads(path.read_text()) if path.exists() else {"hosts": {}}

    yield follow
    begun[0]._over.set()


def test_hosts_of_one_machine_are_asked_once_and_both_are_shown(followed: Any) -> None:
    together = {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
    play = Play({"a": answer(), "c": answer()}, together)
    read = followed(play)

    def all_have_answered() -> bool:
        hosts = read()["hosts"].values()
        return bool(hosts) and all(host["usage"] for host in hosts)

    wait_until(all_have_answered, read)
    assert set(read()["hosts"]) == {"a", "b", "c"}
    assert {asked[0] for asked in play.asked} == {"a", "c"}
    assert {asked[:2] for asked in play.asked} == {("a", ""), ("c", "")}
    assert play.asked[0][2] == {"call": "usage", "root": "~/train", "lease_dir": "/leases"}


def test_a_host_that_goes_down_keeps_its_last_answer_and_comes_back(followed: Any) -> None:
    play = Play({"a": answer()}, {"a": ["a"]})
    read = followed(play)
    wait_until(lambda: read()["hosts"].get("a", {}).get("usage"), read)
    play.answers["a"] = UnreachableError("the connection was refused")
    wait_until(lambda: read()["hosts"]["a"]["error"] == "the connection was refused", read)
    assert read()["hosts"]["a"]["usage"] == USED
    play.answers["a"] = answer()
    wait_until(lambda: read()["hosts"]["a"]["error"] == "", read)


def test_a_host_that_rejects_logins_is_rarely_asked(followed: Any) -> None:
    """Because fail2ban would ban the control node."""
    rejected = UnreachableError("permission denied", "key-denied")
    play = Play(
        {"a": rejected, "b": UnreachableError("timed out", "timeout")}, {"a": ["a"], "b": ["b"]}
    )
    read = followed(play)
    wait_until(lambda: sum(host == "b" for host, *_ in play.asked) > 5, read)
    assert sum(host == "a" for host, *_ in play.asked) == 1
    assert read()["hosts"]["a"]["error"] == "permission denied"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"usage": {**USED, "cores": "many"}},
        {"usage": {**USED, "gpus": [{}] * 1000}},
        {"owners": {"../x": "anna"}},
        {"holds": "all"},
        {"holds": [{**HELD, "state": "stolen"}]},
        {"jobs": 7},
    ],
)
def test_a_malformed_answer_is_an_error_of_its_host(followed: Any, wrong: dict[str, Any]) -> None:
    play = Play(
        {"a": {**answer(), **wrong} if wrong else {}, "b": answer()}, {"a": ["a"], "b": ["b"]}
    )
    read = followed(play)
    wait_until(lambda: read()["hosts"].get("a", {}).get("error"), read)
    wait_until(lambda: read()["hosts"]["b"]["usage"], read)


def test_control_characters_of_a_host_are_removed(followed: Any) -> None:
    hold = {**{"state": "started", "job": "night", "task": "worker-0", "since": 1.0},
            "user": "an\x1b[31mna", "resources": ["port/1"]}  # fmt: skip
    read = followed(Play({"a": answer(holds=[hold])}, {"a": ["a"]}))
    wait_until(lambda: read()["hosts"].get("a", {}).get("holds"), read)
    assert read()["hosts"]["a"]["holds"][0]["user"] == "anna"


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        overview.follow(Play({}, {}), {"folder": str(tmp_path / "no"), "interval": 1})  # type: ignore[arg-type]


def test_the_fields_of_the_usage_are_those_of_the_host() -> None:
    assert set(USED) == set(usage.Usage.__annotations__)
