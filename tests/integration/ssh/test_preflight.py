"""What the check of a host warns of: a firewall that is gone, a machine under two names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import Lab
from tests.support.testbed import Rank, Testbed
from train.gang import connections

PROGRAM = """
import base64, json, os, sys
archive = os.memfd_create("launcher")
os.write(archive, base64.b64decode({launcher!r}))
sys.path.insert(0, "/proc/self/fd/%d" % archive)
from train.host import calls, preflight
preflight.FIREWALL_RULES = {rules!r}
preflight.SYSTEM_PATH = {path!r} + preflight.SYSTEM_PATH
calls.main(json.loads({given!r}))
"""
#: One that any user may run.
PYTHON = "/usr/bin/python3"
MISSING = "the table inet train of the role firewall is not loaded on this host"


def preflight(folder: Path, *before: str) -> list[str]:
    """Run the module with files of its own, and return its warnings of the firewall.

    Args:
        before: the words of a program that runs it.
    """
    given = {"call": "check_host", "root": str(folder), "job": "mine", "attempt": 1}
    given |= {"python": PYTHON, "address": "127.0.0.1", "port": 12345, "min_free_mb": 1, "wait": 0}
    given |= {"lease_dir": str(folder / "leases"), "foreign_gpu": "ignore"}
    files = {"rules": str(folder / "rules.nft"), "path": f"{folder}:"}
    text = PROGRAM.format(launcher=connections.launcher(), given=json.dumps(given), **files)
    command = [*before, PYTHON, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    result: dict[str, Any] = json.loads(done.stdout or "{}")
    assert "host" in result, (result, done.stderr)
    return [warning for warning in result["warnings"] if "firewall" in warning]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("unshare"),
    reason="needs root, nft and unshare",
)
def test_root_is_warned_where_the_firewalls_table_is_gone(tmp_path: Path) -> None:
    assert preflight(tmp_path, "unshare", "--net") == [], "setup gave this host no firewall"
    (tmp_path / "rules.nft").write_text("table inet train { }\n")
    (warning,) = preflight(tmp_path, "unshare", "--net")
    assert warning.startswith(MISSING)
    assert "port 12345" in warning
    assert "playbooks/setup.yml --tags firewall" in warning
    load = f'nft -f {tmp_path}/rules.nft && exec "$@"'
    assert preflight(tmp_path, "unshare", "--net", "sh", "-c", load, "sh") == []


@pytest.mark.parametrize(
    ("state", "count"), [("inactive", 1), ("failed", 1), ("active", 0), ("", 0), ("unknown", 0)]
)
def test_a_user_asks_systemd(state: str, count: int) -> None:
    # pytest's own folder is closed to others.
    with tempfile.TemporaryDirectory(prefix="test-preflight-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "rules.nft").touch()
        asked = '"$*" = "is-active train-firewall.service"'
        (folder / "systemctl").write_text(f"#!/bin/sh\n[ {asked} ] && echo {state}\nexit 3\n")
        (folder / "systemctl").chmod(0o755)
        before = () if os.geteuid() else ("setpriv", "--reuid", "65534", "--clear-groups")
        found = preflight(folder, *before)
    assert [warning.startswith(MISSING) for warning in found] == [True] * count


@pytest.mark.docker
def test_a_machine_under_two_names_is_warned_of(testbed: Testbed, tmp_path: Path) -> None:
    host = testbed.hosts[0]
    other = {"ansible_host": "other.lab", "train_job_address": host.address}
    other |= {"ansible_ssh_extra_args": f"-o HostName={host.address}", "train_job_port": "23456"}
    ranks = [Rank("one", host), Rank("two", host, other), Rank("three", testbed.hosts[1])]
    inventory = testbed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
    lab = Lab(inventory, tmp_path / "runs", {"train_job_python": "/usr/bin/python3"})
    done = lab.playbook("train.yml", "--check", train_job_script=str(PLAIN))
    assert done.returncode == 0, done.stdout
    told = " ".join(done.stdout.split())
    names = f"({host.address} port 22, other.lab port 22)"
    assert f"one and two are one machine under 2 names {names}" in told
    assert told.count("under 2 names") == 1
