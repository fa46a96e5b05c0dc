"""Calls for several ranks of a host."""

from __future__ import annotations

import threading
from typing import Any

from train.host.call_types import CallError, for_each_rank


def test_a_rank_that_fails_is_no_obstacle_for_others_of_its_machine() -> None:
    def call(params: Any) -> Any:
        if params["spec"] == "bad":
            raise CallError("the disk is full", overtaken=True)
        if params["spec"] == "worse":
            raise OSError("stale file handle")
        return {"rank": (params["host"], params["spec"], params["manifest"])}

    hosts = {
        name: {"spec": spec}
        for name, spec in zip("abcd", ("good", "bad", "worse", "fine"), strict=True)
    }
    assert for_each_rank({"hosts": hosts, "manifest": "m"}, call) == {
        "hosts": {
            "a": {"rank": ("a", "good", "m")},
            "b": {"overtaken": True, "failed": True, "msg": "the disk is full"},
            "c": {"failed": True, "msg": "unexpected error: OSError('stale file handle')"},
            "d": {"rank": ("d", "fine", "m")},
        }
    }


def test_ranks_that_take_long_are_called_at_once() -> None:
    all_called = threading.Barrier(3, timeout=20)

    def call(params: Any) -> Any:
        all_called.wait()
        if params["host"] == "b":
            raise CallError("it could not be stopped")
        return {"of": params["host"]}

    found = for_each_rank({"hosts": {"a": {}, "b": {}, "c": {}}}, call, at_once=True)
    assert found["hosts"] == {
        "a": {"of": "a"},
        "b": {"failed": True, "msg": "it could not be stopped"},
        "c": {"of": "c"},
    }
