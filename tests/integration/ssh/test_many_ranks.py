"""Several ranks on one machine, within the limits that its sshd has for logins and sessions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs import train
from tests.support.lab import Lab, free_port
from tests.support.testbed import Host, Rank, Testbed, docker, running_testbed

pytestmark = pytest.mark.docker
#: sshd's defaults, in Debian and upstream.
DEFAULTS = {"maxstartups": "10:30:100", "maxsessions": "10"}
#: With two or more logins in progress, half are refused; with five, all are.
FEW_LOGINS = {"maxstartups": "2:50:5"}
SCRIPT = """
import json, os
for step in (1, 2):
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        print(json.dumps({"phase": "training", "step": step}), file=stream)
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Yield three SSH hosts without TensorFlow, with sshd's default limits."""
    with running_testbed(3, tmp_path_factory.mktemp("bed")) as made:
        yield made


def limit(bed: Testbed, host: Host, limits: dict[str, str]) -> None:
    """Set other limits for a host's sshd."""
    lines = "".join(f"{name} {value}\n" for name, value in limits.items())
    bed.exec(host, "tee", "/etc/ssh/sshd_config.d/limits.conf", user="root", stdin=lines)
    bed.exec(host, "sh", "-c", "kill -HUP $(cat /run/sshd.pid)", user="root")


def logins(host: Host) -> int:
    """Return how many logins a host's sshd has accepted."""
    done = docker("logs", host.container)
    return (done.stdout + done.stderr).count("Accepted publickey for train")


def lab_of(bed: Testbed, folder: Path, ranks: list[Rank], **variables: object) -> Lab:
    # There is no login of another test yet.
    variables["ansible_control_path"] = f"%(directory)s/{free_port()}-%%h"
    inventory = bed.write_inventory({"worker": ranks}, variables, folder / "inventory")
    given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    return Lab(inventory, folder / "runs", given, doubtful=True)


def ranks_on(host: Host, count: int) -> list[Rank]:
    return [Rank(f"rank-{n}", host, {"train_job_port": free_port()}) for n in range(count)]


def script_in(folder: Path) -> str:
    path = folder / "script/main.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return str(path)


def test_sixteen_ranks_with_sshds_own_limits(bed: Testbed, tmp_path: Path) -> None:
    host = bed.hosts[0]
    active = bed.exec(host, "/usr/sbin/sshd", "-T", user="root").stdout
    assert {f"{name} {value}" for name, value in DEFAULTS.items()} <= set(active.splitlines())
    lab = lab_of(bed, tmp_path, ranks_on(host, 16))
    ended = lab.run("--job", "many", "--script", script_in(tmp_path))
    assert ended.code == 0, ended.error
    assert [rank["phase"] for rank in ended.result["ranks"]] == ["completed"] * 16
    # Two logins for about 60 commands, plus those of commands that found no place, because a busy
    # sshd is slow to close sessions.
    assert 1 <= logins(host) < 32
    log = (lab.runs_dir / "many/ansible.log").read_text()
    assert "kex_exchange_identification" not in log
    assert "mux_client" not in log


@pytest.mark.soak
def test_eight_ranks_where_few_logins_may_be_in_progress(bed: Testbed, tmp_path: Path) -> None:
    host = bed.hosts[1]
    # Commands that find no place in the shared login log in separately.
    limit(bed, host, {**FEW_LOGINS, "maxsessions": "2"})
    lab = lab_of(bed, tmp_path, ranks_on(host, 8))
    ended = lab.run("--job", "few", "--script", script_in(tmp_path))
    assert ended.code == 0, ended.error
    listed = train(*lab.words("list", "--json"))
    assert (listed.returncode, listed.stderr) == (0, "")
    (job,) = json.loads(listed.stdout)["jobs"]
    assert (job["job"], job["total"]) == ("few", 8)
    status = train(*lab.words("status", "few"))
    assert status.returncode == 0, status.stderr
    assert status.stdout.count("completed") >= 8
    doctor = train(*lab.words("doctor", "--only", "hosts"))
    assert "unreachable" not in doctor.stdout + doctor.stderr
    assert "kex_exchange_identification" not in doctor.stdout + doctor.stderr
    assert "mux_client" not in doctor.stdout + doctor.stderr


def test_machines_behind_a_jump_host_where_few_logins_may_be_in_progress(
    bed: Testbed, tmp_path: Path
) -> None:
    *hosts, jump = bed.hosts
    for host in hosts:
        limit(bed, host, {})
    limit(bed, jump, FEW_LOGINS)
    key = ["-i", str(bed.directory / "id_ed25519")]
    proxy = shlex.join(["ssh", *key, *bed.ssh_options, "-W", "%h:%p", f"train@{jump.address}"])
    options = shlex.join([*bed.ssh_options, "-o", f"ProxyCommand={proxy}"])
    # The jump host has one login for each name of a machine.
    ranks = [
        Rank(f"rank-{number}-{kind}", host, {"ansible_host": name})
        for number, host in enumerate(hosts)
        for kind, name in (("address", host.address), ("name", host.name))
    ]
    lab = lab_of(bed, tmp_path, ranks, ansible_ssh_common_args=options)
    listed = train(*lab.words("list", "--json"))
    assert (listed.returncode, listed.stderr) == (0, "")


def test_many_ranks_on_a_machine_that_does_not_answer(bed: Testbed, tmp_path: Path) -> None:
    closed = [
        Rank(rank.name, rank.host, {**rank.variables, "ansible_port": 9})
        for rank in ranks_on(bed.hosts[0], 8)
    ]
    listed = train(*lab_of(bed, tmp_path, closed).words("list", "--json"))
    assert listed.returncode == 4
    assert "the connection was refused" in listed.stderr, listed.stderr
