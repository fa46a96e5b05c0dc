"""``playbooks/setup.yml`` on fresh hosts with systemd, some of which break half-way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, ansible_playbook, environment, playbook_command
from tests.support.set_up_role import recap, shell, systemd_hosts
from tests.support.testbed import Testbed, docker

pytestmark = pytest.mark.docker
ROLES = ["training_host", "clock_sync", "ssh_keys"]
GIVEN = {"setup_roles": ROLES, "clock_sync_source": "host-0"}

hosts = systemd_hosts(3)


def test_a_host_that_breaks_is_named_and_fixed_by_the_next_run(hosts: Testbed) -> None:
    """host-1 loses its network in the middle, host-2 finds no packages."""
    source = "sed -i.before 's#http[s]*://[^ ]*#http://127.0.0.1:9/debian#' /etc/apt/sources.list"
    shell(hosts, source, 2, check=True)
    network = json.loads(docker("inspect", hosts.host("host-1").container).stdout)[0]
    (name, settings) = next(iter(network["NetworkSettings"]["Networks"].items()))
    with subprocess.Popen(
        playbook_command("setup.yml", hosts.directory / "inventory", GIVEN),
        cwd=REPOSITORY,
        env={**environment(), "ANSIBLE_TIMEOUT": "5"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first:
        assert first.stdout is not None
        shown = ""
        for line in first.stdout:
            shown += line
            if "TASK [clock_sync : Finish an installation that was cut off" in line:
                docker("network", "disconnect", name, hosts.host("host-1").container)
        code = first.wait()
    address = ["--ip", settings["IPAddress"]]
    docker("network", "connect", *address, name, hosts.host("host-1").container)
    shell(hosts, "mv /etc/apt/sources.list.before /etc/apt/sources.list", 2, check=True)

    assert code in (2, 4), shown
    counts = recap(shown)
    assert (counts["host-0"]["failed"], counts["host-0"]["unreachable"]) == (0, 0), shown
    assert counts["host-1"]["unreachable"] == 1, shown
    assert counts["host-2"]["failed"] == 1, shown
    assert "Unable to locate package" in shown, shown

    second = ansible_playbook("setup.yml", hosts.directory / "inventory", GIVEN)
    assert second.returncode == 0, second.stdout[-3000:]
    for host in hosts.hosts:
        for other in hosts.hosts:
            done = hosts.exec(host, "ssh", "-o", "BatchMode=yes", other.name, "hostname")
            assert done.stdout.strip() == other.name

    given = {**GIVEN, "teardown_roles": ROLES}
    gone = ansible_playbook("teardown.yml", hosts.directory / "inventory", given)
    assert gone.returncode == 0, gone.stdout[-3000:]
    for host in hosts.hosts:
        for path in ("/home/train/.ssh/train-cluster", "/etc/security/limits.d/train.conf"):
            assert hosts.exec(host, "test", "-e", path, check=False).returncode == 1, path


def test_a_role_that_does_not_exist(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("worker: {hosts: {here: {ansible_connection: local}}}\n")
    done = ansible_playbook("setup.yml", inventory, {"setup_roles": ["tensorfow"]})
    assert done.returncode == 2
    assert "names tensorfow: the roles are training_host, clock_sync" in " ".join(
        done.stdout.split()
    )


def test_a_limit_to_an_inventory_host_that_shares_a_machine() -> None:
    inventory = REPOSITORY / "inventory/local"
    done = ansible_playbook("setup.yml", inventory, {}, "--limit", "localhost-1")
    assert done.returncode == 2
    assert "give those to --limit, of localhost-0" in " ".join(done.stdout.split())


def test_teardown_asks_what_is_meant() -> None:
    done = ansible_playbook("teardown.yml", REPOSITORY / "inventory/local", {})
    assert done.returncode == 2
    assert "Name the roles whose work is to be taken away" in " ".join(done.stdout.split())
