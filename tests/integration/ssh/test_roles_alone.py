"""Each role by itself, from a foreign playbook whose ansible.cfg only says where roles are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from tests.support.set_up_role import Play, run_plays
from tests.support.testbed import Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two hosts with systemd."""
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(2, tmp_path_factory.mktemp("alone") / "bed", systemd=True) as made:
        yield made


def alone(bed: Testbed, role: str, hosts: str = "worker", **variables: Any) -> Play:
    """Run a role from a folder that is not the repository's."""
    config = bed.directory / "ansible.cfg"
    config.write_text(f"[defaults]\nroles_path = {REPOSITORY / 'roles'}\n", encoding="utf-8")
    play = {"hosts": hosts, "gather_facts": False, "roles": [role], "vars": variables}
    return run_plays(bed, [play], config=config)


def variables_of(role: str, bed: Testbed, folder: Path) -> dict[str, Any]:
    """Return what a playbook hands over to a role."""
    addresses = {host.name: host.address for host in bed.hosts}
    given: dict[str, dict[str, Any]] = {
        "training_host": {"training_host_nofile": 4096, "training_host_memlock": ""},
        "clock_sync": {"clock_sync_source": "host-0", "clock_sync_addresses": addresses},
        "nvidia_driver": {},
        "training_data": {"training_data": [{"name": "small", "src": str(folder)}]},
        "ssh_keys": {
            "ssh_keys_members": [
                {
                    **{"name": host.name, "names": [host.name], "ssh_port": 22},
                    **{"address": host.address, "outer": host.address},
                }
                for host in bed.hosts
            ]
        },
        "firewall": {
            "firewall_members": [[host.name, host.address] for host in bed.hosts],
            "firewall_ports": [12345],
        },
    }
    return given[role]


@pytest.mark.parametrize(
    ("role", "sign"),
    [
        ("training_host", "grep -q 'train hard nofile 4096' /etc/security/limits.d/train.conf"),
        ("clock_sync", "chronyc -c tracking | grep -q ,Normal"),
        ("nvidia_driver", "! ls /dev/nvidia0"),
        ("training_data", "test -s /home/train/train/data/small/of-the-test"),
        (
            "ssh_keys",
            "su train -c 'for host in host-0 host-1; do ssh -n -o BatchMode=yes $host; done'",
        ),
        ("firewall", "nft list ruleset | grep -q 12345"),
    ],
)
def test_a_role_from_a_foreign_playbook(bed: Testbed, tmp_path: Path, role: str, sign: str) -> None:
    (tmp_path / "of-the-test").write_text("data")
    given = variables_of(role, bed, tmp_path)
    done = alone(bed, role, **given)
    assert done.code == 0, done.shown
    for host in bed.hosts:
        bed.exec(host, "sh", "-c", sign, user="root")
    again = alone(bed, role, **given)
    assert (again.code, again.changed) == (0, 0), again.shown


def test_the_role_tensorflow_checks_its_arguments(bed: Testbed) -> None:
    done = alone(bed, "tensorflow", tensorflow_variant="tpu")
    assert done.code == 2
    assert "value of tensorflow_variant must be one of: auto, cpu, gpu, got: tpu" in done.shown


def test_the_role_train_job_runs_a_job_on_this_machine(bed: Testbed, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task'])\n")
    done = alone(
        bed,
        "train_job",
        hosts="localhost",
        ansible_connection="local",
        train_job_groups={"worker": ["localhost"], "chief": [], "ps": [], "evaluator": []},
        train_job_script=str(script),
        train_job_root=str(tmp_path / "train"),
        train_job_runs_dir=str(tmp_path / "runs"),
        train_job_lease_dir=str(tmp_path / "leases"),
        train_job_python=sys.executable,
    )
    assert done.code == 0, done.shown
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["state"] == "completed"
