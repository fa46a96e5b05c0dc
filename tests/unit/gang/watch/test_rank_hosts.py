"""Requests to the ranks' hosts: over sessions, or with commands where these do not work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from train.gang.errors import UnreachableError
from train.gang.host_session import SessionError
from train.gang.watch.rank_hosts import RankHosts
from train.gang.watch.views import Target


class Session:
    """A session that answers until it is broken."""

    def __init__(self, play: Play) -> None:
        self._play, self.closed = play, False

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert not self.closed
        self._play.made.append("asked")
        if self._play.broken:
            raise SessionError("broken")
        return {"by": "session", **request}

    def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self._play.made.append("killed")
        self._play.broken = True


class Play:
    """Records how a host is asked."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.sessions: list[Session] = []
        self.purposes: set[str] = set()
        self.broken = self.unreachable = self.local = False

    def is_here(self, host: str, purpose: str) -> bool:
        return self.local

    def session(self, host: str, purpose: str, words: list[str], folder: str) -> Session:
        program = ["py", "-S", "-E", "programs.zip", "train.host.updates"]
        assert (words, folder) == (program, "/x/launcher")
        self.made.append("opened")
        self.purposes.add(purpose)
        if self.unreachable:
            raise UnreachableError("no route")
        self.sessions.append(Session(self))
        return self.sessions[-1]

    def run(self, host: str, purpose: str, words: list[str], folder: str) -> dict[str, Any]:
        self.made.append("command")
        self.purposes.add(purpose)
        if self.unreachable:
            raise UnreachableError("no route", "network")
        return {"by": "command", "words": words[5:]}


TARGET: Any = SimpleNamespace(host="a", place="a", rank_dir="/x", host_python="py")


def hosts(play: Play) -> RankHosts:
    made: Any = play
    return RankHosts(made)


def poll(asked: RankHosts, target: Target = TARGET, wait: float = 5.0) -> str:
    return str(asked.poll(target, {"/x": {"log": 3}}, wait, 2.0)["by"])


def test_one_session_answers_until_the_machine_is_left() -> None:
    play = Play()
    asked = hosts(play)
    given = {"by": "session", "cursors": {"/x": {"log": 3}}, "wait": 5.0, "interval": 2.0}
    assert [asked.poll(TARGET, {"/x": {"log": 3}}, 5.0, 2.0) for _ in range(3)] == [given] * 3
    assert play.made == ["opened", "asked", "asked", "asked"]
    asked.leave(TARGET)
    assert play.sessions[0].closed
    asked.leave(TARGET)  # nothing is left


def test_a_single_request_is_a_command() -> None:
    play = Play()
    assert poll(hosts(play), wait=0.0) == "command"
    assert play.made == ["command"]


def test_a_session_that_breaks_is_replaced_once_a_command_has_worked() -> None:
    play = Play()
    asked = hosts(play)
    poll(asked)
    play.broken = play.unreachable = True
    for _ in range(2):  # the host cannot be reached
        with pytest.raises(UnreachableError):
            poll(asked)
    assert play.made == ["opened", "asked", "asked", "command", "command"]
    assert play.sessions[0].closed
    play.broken = play.unreachable = False
    assert [poll(asked) for _ in range(3)] == ["command", "session", "session"]
    assert len(play.sessions) == 2


def test_a_machine_without_any_answer_in_a_session_gets_commands_after_three_tries() -> None:
    play = Play()
    asked = hosts(play)
    play.broken = True
    assert [poll(asked) for _ in range(5)] == ["command"] * 5
    assert play.made.count("opened") == 3
    play.broken = False
    assert poll(asked) == "command"
    other: Any = SimpleNamespace(**{**vars(TARGET), "place": "b"})
    assert poll(asked, other) == "session", "only this machine is concerned"


def test_the_command_after_a_failed_session_waits_only_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    times = iter([100.0, 103.0, 200.0, 209.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    play.broken = True
    asked = hosts(play)
    found: Any = [asked.poll(TARGET, {}, 5.0, 2.0)["words"] for _ in range(2)]
    assert found == [["{}", "2.0", "2.0"], ["{}", "0.0", "2.0"]]


def test_a_session_that_starts_while_the_watch_ends_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    asked, begin = hosts(play), play.session

    def session(*given: Any) -> Session:
        asked.close()
        return begin(*given)

    monkeypatch.setattr(play, "session", session)
    with pytest.raises(OSError, match="the watch is over"):
        poll(asked)
    assert play.made == ["opened"]
    assert play.sessions[0].closed


def test_each_place_has_a_separate_connection_for_sessions_and_commands() -> None:
    play = Play()
    asked = hosts(play)
    places: list[Any] = [SimpleNamespace(**{**vars(TARGET), "place": place}) for place in "ab"]
    for broken in (False, True):
        play.broken = broken
        for target in places:
            poll(asked, target)
    assert play.purposes == {"updates of a", "updates of b"}


def test_nothing_is_asked_once_the_watch_is_over() -> None:
    play = Play()
    asked = hosts(play)
    poll(asked)
    asked.close()
    with pytest.raises(OSError, match="the watch is over"):
        poll(asked)
    assert play.made == ["opened", "asked", "killed", "asked"]


def test_a_failed_login_is_not_tried_twice_for_a_request() -> None:
    play = Play()
    asked = hosts(play)
    play.unreachable = True
    for _ in range(2):
        with pytest.raises(UnreachableError):
            poll(asked)
    assert play.made == ["opened", "opened"]
    play.unreachable = False
    assert poll(asked) == "session"


def test_a_rank_of_this_machine_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    play.local = True
    monkeypatch.setattr(
        "train.host.updates.wait_for_updates", lambda *given: {"by": "itself", "given": given}
    )
    assert poll(hosts(play)) == "itself"
    assert play.made == []


def test_a_probe_is_a_command() -> None:
    play = Play()
    found: Any = hosts(play).probe(TARGET, {"worker-1": ("b", 1)})
    assert found["words"] == ["/x", '{"worker-1": ["b", 1]}', "3.0"]
