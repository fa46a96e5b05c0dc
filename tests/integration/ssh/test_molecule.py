"""The playbooks on new hosts, by Molecule's scenarios."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.lab import run

pytestmark = pytest.mark.docker


def molecule(*words: str) -> subprocess.CompletedProcess[str]:
    return run("molecule", *words, stderr=subprocess.STDOUT, timeout=3600)


def test_all_scenarios() -> None:
    molecule("destroy")  # what an interrupted run has left
    try:
        done = molecule("test", "--all")  # ends with it, also after a failure
    except BaseException:
        molecule("destroy")
        raise
    assert done.returncode == 0, done.stdout[-10_000:]
