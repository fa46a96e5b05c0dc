"""``playbooks/setup.yml`` on new hosts, by Molecule.

This covers the duties of every role: check mode on fresh hosts, a second run, the removal.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.support.lab import run


@pytest.mark.docker
def test_the_scenario() -> None:
    try:
        # It ends with `destroy`, even after a failure.
        done = run("molecule", "test", stderr=subprocess.STDOUT, timeout=3600)
    except BaseException:
        run("molecule", "destroy")
        raise
    assert done.returncode == 0, done.stdout[-10_000:]
