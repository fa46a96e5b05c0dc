"""What the check of a host warns of: a firewall that is gone."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import run
from train.host import preflight

ROOT, USER = 0, 1000
GONE = "echo 'Error: No such file or directory' >&2; exit 1"


@pytest.mark.parametrize(
    ("user", "answer", "lacks"),
    [
        (ROOT, GONE, True),
        (ROOT, "echo 'table inet train {'", False),
        (ROOT, "echo 'Operation not permitted' >&2; exit 1", False),
        (USER, "echo inactive; exit 3", True),
        (USER, "echo failed; exit 3", True),
        (USER, "echo active", False),
        (USER, "echo unknown; exit 4", False),
        (USER, "exit 1", False),
    ],
)
def test_whether_the_firewalls_table_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, answer: str, lacks: bool
) -> None:
    """Root asks nft, and others systemd; where setup left no rules, nobody is asked."""
    rules = tmp_path / "rules.nft"
    monkeypatch.setattr(preflight, "FIREWALL_RULES", str(rules))
    monkeypatch.setattr(preflight, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    asked = ("nft", "list table inet train")
    if user != ROOT:
        asked = ("systemctl", "is-active train-firewall.service")
    program = tmp_path / asked[0]
    program.write_text(f'#!/bin/sh\n[ "$*" = "{asked[1]}" ] || exit 9\n{answer}\n')
    program.chmod(0o755)
    assert not preflight.lacks_firewall()
    rules.touch()
    assert preflight.lacks_firewall() == lacks
    program.unlink()
    assert not preflight.lacks_firewall()


REAL = """
import subprocess, sys
from train.host import preflight
preflight.FIREWALL_RULES = "/dev/null"
print(preflight.lacks_firewall())
subprocess.run(["nft", "add", "table", "inet", "train"], check=True)
print(preflight.lacks_firewall())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("unshare"),
    reason="needs root, nft and unshare",
)
def test_what_nft_really_answers() -> None:
    done = run("unshare", "--net", sys.executable, "-c", REAL)
    assert done.stdout == "True\nFalse\n", done.stderr


def test_who_opens_a_port_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "lacks_firewall", lambda: True)
    given: dict[str, Any] = {"root": str(tmp_path), "job": "mine", "attempt": 1, "wait": 0}
    given |= {"python": sys.executable, "address": "127.0.0.1", "min_free_mb": 1}
    given |= {"lease_dir": str(tmp_path / "leases"), "foreign_gpu": "ignore"}
    assert preflight.check(given)["warnings"] == []
    assert preflight.check({**given, "port": 12345})["warnings"] == [
        "the table inet train of the role firewall is not loaded on this host, so whoever reaches "
        "port 12345 may connect: run `<suggest setup tags=firewall>`"
    ]
