"""The choice of hosts that run TensorBoard, from their reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lab import free_port
from train.gang import tensorboard_plan
from train.gang.errors import UserError

REPORTED: dict[str, dict[str, Any]] = {
    "same": {"events": ["a", "b"], "port": 4001},
    "again": {"events": ["a"], "port": 4002},  # the folder of another host, or of this machine
    "more": {"events": ["a", "c"], "port": 4003},
    "none": {"events": [], "port": 4004},
    "away": {"unreachable": True},
    "wrong": {"events": ["d"], "port": "6006; rm -r ~"},
    "boxed": {"events": ["e"], "port": 4005},
}
PLUGINS = {"same": "local", "boxed": "community.docker.docker"}


def choose(*hosts: str, port: int = 6006) -> dict[str, Any]:
    play: Any = SimpleNamespace(
        hosts=hosts,
        registered=lambda host, name: REPORTED[host],
        connection=lambda host: (PLUGINS.get(host, "ssh"), host, "", ""),
    )
    return tensorboard_plan.choose(play, {"jobs": ["night"], "port": port, "registered": "events"})


def test_hosts_with_events_of_their_own_show_them() -> None:
    port = free_port()
    chosen = choose(*REPORTED, port=port)
    boards = chosen["boards"]
    assert set(boards) == {"same", "more"}
    same, more = boards["same"], boards["more"]
    assert (same["here"], same["there"], same["ssh"]) == (port, port, "")
    assert same["url"] == f"http://127.0.0.1:{port}/{same['path']}/"
    assert len(same["path"]) == len(more["path"]) == 22
    assert same["path"] != more["path"]
    here = boards["more"]["here"]
    assert port < here < port + 10
    assert boards["more"]["ssh"].endswith(f"-L 127.0.0.1:{here}:127.0.0.1:4003")
    assert [line.split()[0] for line in chosen["warnings"]] == ["wrong", "boxed"]


def test_without_events_the_jobs_are_named() -> None:
    with pytest.raises(UserError, match="no host has TensorBoard events of night yet"):
        choose("none", "away")
