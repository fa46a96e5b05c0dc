"""The test bed of SSH hosts: its inventories, and that nothing of it is left. The rest, all tests
with SSH hosts and Molecule's scenarios use.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.support.testbed import (
    Host,
    Rank,
    Testbed,
    TestbedError,
    bed,
    docker,
    down,
)

A = Host("host-0", "10.0.0.2", "bed-host-0")
B = Host("host-1", "10.0.0.3", "bed-host-1")


def test_inventories_of_ranks_that_share_a_host(tmp_path: Path) -> None:
    made = Testbed(tmp_path, [A, B])
    made.write_inventory({"worker": made.hosts}, {"train_job_root": "/srv"})
    path = made.write_inventory(
        {"chief": [A], "worker": [Rank("w1", B, {"port": 1}), Rank("w0", B, {"port": 2})], "ps": []}
    )
    groups = json.loads((path / "hosts.yml").read_text())["all"]["children"]
    # The index of a task is its host's place in the group: the order is kept.
    assert list(groups.pop("worker")["hosts"].items()) == [
        ("w1", {"ansible_host": "10.0.0.3", "port": 1}),
        ("w0", {"ansible_host": "10.0.0.3", "port": 2}),
    ]
    assert groups == {
        "chief": {"hosts": {"host-0": {"ansible_host": A.address}}},
        "ps": {"hosts": {}},
    }
    # Nothing of the inventory before is left.
    assert [file.name for file in (path / "group_vars/all").iterdir()] == ["ansible.yml"]
    with pytest.raises(TestbedError, match="'ps': 'x' stands for two hosts"):
        made.write_inventory({"worker": [Rank("x", A)], "ps": [Rank("x", B)]})


def test_two_test_beds_share_no_control_path(tmp_path: Path) -> None:
    paths = set()
    for prefix in ("one", "two"):
        made = Testbed(tmp_path, [Host("host-0", "10.0.0.2", f"{prefix}-host-0")])
        connection = made.write_inventory({"worker": made.hosts}) / "group_vars/all/ansible.yml"
        paths.add(json.loads(connection.read_text())["ansible_control_path"])
    assert len(paths) == 2


@pytest.mark.docker
def test_a_start_that_fails_names_the_host_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(bed, "READY_TIMEOUT", 0.5)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(TestbedError, match=r"(?s)host-.: no SSH server answers at .*listening on"):
        Testbed.up(2, tmp_path)
    mine = ("--quiet", "--filter", f"label={bed.LABEL}={tmp_path}")
    assert docker("ps", "--all", *mine).stdout + docker("network", "ls", *mine).stdout == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "known_hosts").write_text("a user's own")
    assert down(tmp_path) == []
    assert (tmp_path / "known_hosts").exists()
