"""Fixtures that the tests share: environments of frameworks, inventories and SSH hosts."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.plugins.loader import init_plugin_loader

from tests.support.gpus import machine as machine
from tests.support.hook import hook as hook
from tests.support.lab import (
    REPOSITORY,
    Lab,
    Labs,
    ansible_playbook,
    free_port,
    install_jax,
    once,
    tensorflow_testbed,
    write_local_inventory,
)
from tests.support.lease_ranks import supervisor as supervisor
from tests.support.testbed import Rank, Testbed, docker_available
from tests.support.training_ranks import start as start

# Makes the plugins of this collection importable.
init_plugin_loader([str(REPOSITORY / "playbooks/collections")])


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all test processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def tf_python(shared: Path) -> str:
    """Return the interpreter of the environment that ``playbooks/setup.yml`` creates here."""

    return once(shared, "python", lambda: _python_of("tensorflow", "~/train/venv"))


@pytest.fixture(scope="session")
def jax_python(shared: Path) -> str:
    """Return the interpreter of the environment with JAX that ``playbooks/setup.yml`` creates here.

    The first run on a machine downloads 150 MB, and takes about 30 s of CPU time. Later runs only
    check the environment.
    """
    return once(shared, "jax-python", lambda: _python_of("jax", "~/train/venv-jax"))


def _python_of(framework: str, environment: str) -> str:
    """Run ``playbooks/setup.yml`` for a framework on this machine; return its interpreter."""
    variables = {"train_job_framework": framework}
    done = ansible_playbook("setup.yml", REPOSITORY / "inventory/local", variables)
    assert done.returncode == 0, done.stdout[-3000:]
    return str(Path(environment, "bin/python").expanduser())


@pytest.fixture
def local_lab(tmp_path: Path) -> Labs:
    """Return a factory of labs on this machine; their ranks run under plain Python."""

    def make(**groups: int) -> Lab:
        return Lab(
            write_local_inventory(tmp_path / "inventory", groups or {"worker": 2}),
            tmp_path / "runs",
            {
                "train_job_root": str(tmp_path / "hosts"),
                "train_job_lease_dir": str(tmp_path / "leases"),
                "train_job_python": sys.executable,
                "train_job_max_restarts": 0,
                "train_job_update_interval": 0.5,
            },
        )

    return make


@pytest.fixture
def lab(local_lab: Labs, tf_python: str) -> Lab:
    """Return a lab of two workers on this machine, with TensorFlow."""
    made = local_lab()
    made.variables["train_job_python"] = tf_python
    return made


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[Testbed]:
    """Yield four SSH hosts in Docker, with TensorFlow."""
    with tensorflow_testbed(4, tmp_path_factory.mktemp("testbed"), shared) as bed:
        yield bed


@pytest.fixture(scope="session")
def jax_testbed(testbed: Testbed, shared: Path) -> Testbed:
    """Return the four SSH hosts, with JAX in addition to TensorFlow."""
    install_jax(testbed, shared)
    return testbed


@pytest.fixture
def ssh_lab(testbed: Testbed, tmp_path: Path) -> Labs:
    """Return a factory of labs on the SSH hosts: ranks by group, dealt out to hosts in turn."""

    def make(**groups: int) -> Lab:
        hosts = itertools.cycle(testbed.hosts)
        members: dict[str, list[Rank]] = {}
        for group, count in groups.items():
            members[group] = [
                Rank(f"{group}{index}", next(hosts), {"train_job_port": free_port()})
                for index in range(count)
            ]
        inventory = testbed.write_inventory(members, path=tmp_path / "inventory")
        return Lab(inventory, tmp_path / "runs", {"train_job_max_restarts": 0})

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with the longest tests first, so that no test process is left with them."""
    ranks = [{"testbed", "docker"}, {"tf_python", "jax_python", "tensorflow"}, {"local_lab"}]
    places: dict[Path, int] = {}
    for item in items:
        needs = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
        place = next((n for n, names in enumerate(ranks) if names & needs), len(ranks))
        places[item.path] = min(place, places.get(item.path, place))
    items.sort(key=lambda item: places[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need SSH hosts if there is no Docker engine."""
    if item.get_closest_marker("docker") and not docker_available():
        pytest.skip("no Docker engine answers")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report that the tests with SSH hosts were skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any("no Docker engine" in str(report.longrepr) for report in skipped):
        terminalreporter.section("NO DOCKER ENGINE ANSWERS", red=True, bold=True)
        terminalreporter.line("Tests with SSH hosts were LEFT OUT. Start an engine to run them.")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fail in CI if there is no Docker engine for the SSH hosts."""
    if os.environ.get("CI") and not docker_available():
        pytest.exit("CI needs a Docker engine, and none answers", returncode=1)
