"""The job that attach finds, from the reports of the hosts in this play."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.gang.hostile import FACTS, RANK, a_manifest
from train.gang.errors import NothingAnsweredError, UserError
from train.gang.plan import reattach

NAMES = ["a", "b", "spare"]
UNREACHABLE = {"unreachable": True, "msg": "no route"}


def manifest(**changed: Any) -> Any:
    """Return a manifest of ranks on two hosts with other names."""
    hosts = {name: {**FACTS, "address": name} for name in ("node-0", "node-1")}
    return a_manifest(hosts=hosts, **changed)


def find(run_dir: Path, states: dict[str, Any], own: Any = None) -> Any:
    """Return the result of attach in a play with the hosts NAMES."""
    if own is not None:
        (run_dir / "manifest.json").write_text(json.dumps(own))
    addresses = {"a": "node-0", "b": "node-1", "spare": "10.0.0.9"}

    def fetch(*_: Any) -> None:
        raise OSError("nothing is sent")

    play: Any = SimpleNamespace(
        hosts=NAMES,
        limited=False,
        registered=lambda host, _: states[host],
        connection=lambda host: ("ssh", addresses[host], "", ""),
        fetch=fetch,
    )
    given = {"job": "night", "root": "~/train", "run_dir": run_dir, "readable_by": "owner"}
    groups = {"worker": ["a", "b"], "spare": ["spare"]}
    return reattach.find(
        play, {**given, "groups": groups, "code_limit_mb": 1, "registered": "info"}
    )


def seen(*tasks: str, **kept: Any) -> Any:
    ranks = [{"rank": {**RANK, "task": task}} for task in tasks]
    return {**(ranks[0] if ranks else {"rank": None}), "more": ranks[1:], **kept}


def test_a_job_without_any_host_that_answers_is_not_followed(tmp_path: Path) -> None:
    unreachable = dict.fromkeys(NAMES, UNREACHABLE)
    for states, own in (
        (unreachable, None),
        (unreachable, manifest()),
        ({**unreachable, "spare": seen()}, manifest()),
        (unreachable, a_manifest()),  # their addresses are not known
    ):
        with pytest.raises(NothingAnsweredError):
            find(tmp_path, states, own)


def test_a_job_that_is_not_known_here(tmp_path: Path) -> None:
    states = {"a": UNREACHABLE, "b": seen(), "spare": seen()}
    with pytest.raises(UserError, match=r"no host has job night .*that did not answer: a\)"):
        find(tmp_path, states)
    with pytest.raises(UserError, match="are not in this inventory: node-0 and node-1"):
        find(tmp_path, states, a_manifest())


def test_a_job_of_another_inventory_is_kept_in_the_names_of_this_one(tmp_path: Path) -> None:
    states = {"a": UNREACHABLE, "b": seen("worker-1", manifest=manifest()), "spare": seen()}
    found = find(tmp_path, states)
    assert found["hosts"] == ["a", "b"]
    assert [(rank["task"], rank["host"]) for rank in found["found_ranks"]] == [
        ("worker-0", "a"),
        ("worker-1", "b"),
    ]
    kept = json.loads((tmp_path / "manifest.json").read_text())
    assert [rank["host"] for rank in kept["ranks"]] == ["a", "b"]
    # The same in the clone that started the job.
    again = find(tmp_path, states, manifest())
    assert [rank["host"] for rank in again["found_ranks"]] == ["a", "b"]


def test_several_ranks_on_one_host(tmp_path: Path) -> None:
    states = {"a": seen("worker-0", "worker-1", manifest=manifest()), "b": seen(), "spare": seen()}
    found = find(tmp_path, states)
    assert found["hosts"] == ["a"]
    assert [(rank["task"], rank["host"]) for rank in found["found_ranks"]] == [
        ("worker-0", "a"),
        ("worker-1", "a"),
    ]
