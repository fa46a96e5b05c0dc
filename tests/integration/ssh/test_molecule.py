"""The playbooks on new hosts, by Molecule's scenarios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, environment
from tests.support.testbed import docker_available

pytestmark = pytest.mark.docker


def molecule(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "molecule"), *words],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_all_scenarios() -> None:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    molecule("destroy")  # what an interrupted run has left
    try:
        done = molecule("test", "--all")
        assert done.returncode == 0, done.stdout[-10_000:]
    finally:
        molecule("destroy")
