"""Questions to many hosts at once, with a limit."""

from __future__ import annotations

import threading
import time

from train.host.threads import ask_all


def test_answers_and_errors_come_back_by_name_in_order() -> None:
    def ask(name: str) -> int:
        if name == "bad":
            raise OSError("no route to host")
        return len(name)

    answers, errors = ask_all(["ccc", "bad", "a"], ask, 10.0)
    assert [*answers.items()] == [("ccc", 3), ("a", 1)]
    assert errors == {"bad": "no route to host"}
    assert ask_all([], ask, 10.0) == ({}, {})


def test_one_that_does_not_answer_delays_the_others_up_to_the_limit_only() -> None:
    release = threading.Event()

    def ask(name: str) -> str:
        if name == "slow":
            release.wait(30)
        return name

    began = time.monotonic()
    answers, errors = ask_all(["slow", "quick"], ask, 0.05)
    assert time.monotonic() - began < 10
    release.set()
    assert answers == {"quick": "quick"}
    assert errors == {"slow": "it did not answer within 0.05 s"}


def test_all_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(3)
    answers, errors = ask_all("abc", lambda name: together.wait(10) >= 0, 20.0)
    assert (answers, errors) == ({"a": True, "b": True, "c": True}, {})
