"""A job of PyTorch on SSH hosts, with Debian's package: CPUs, and gloo for what they exchange."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, Lab, free_port
from tests.support.testbed import Rank, running_testbed
from tests.support.testbed.engine import BOOKWORM, docker, ensure_image, one_build

#: The package and what it needs take 250 MB to download and 1 GB on the disk.
pytestmark = [pytest.mark.docker, pytest.mark.soak]

IMAGE = "train-testbed-torch:bookworm"
RECIPE = f"""
FROM {BOOKWORM}
RUN apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-torch \\
 && rm -rf /var/lib/apt/lists/*
"""
#: A host's name that leads to its loopback address, as on an installed Debian.
LOOPBACK = r"""
name=$(hostname)
sed "s/^.*\b$name$/127.0.1.1 $name/" /etc/hosts > /tmp/hosts && cat /tmp/hosts > /etc/hosts
getent hosts "$name"
"""


@pytest.fixture(scope="session")
def torch_image() -> str:
    """Build an image with Debian's PyTorch, unless it exists, and return its tag."""
    ensure_image(BOOKWORM)
    with one_build():
        if docker("image", "inspect", IMAGE, check=False).returncode:
            docker("build", "--tag", IMAGE, "-", stdin=RECIPE, timeout=1800)
    return IMAGE


def test_a_script_for_torchrun_resumes_after_a_rank_was_killed(
    torch_image: str, tmp_path: Path
) -> None:
    with running_testbed(2, tmp_path / "bed", bases=(torch_image,)) as bed:
        for host in bed.hosts:
            found = bed.exec(host, "sh", "-ec", LOOPBACK, user="root")
            assert found.stdout.startswith("127.0.1.1 ")
        ranks = [Rank(f"w{n}", h, {"train_job_port": free_port()}) for n, h in enumerate(bed.hosts)]
        inventory = bed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
        lab = Lab(inventory, tmp_path / "runs", {"train_job_restart_delay": 0})
        running = lab.start(
            *("--job", "ddp", "--framework", "torch"),
            *("--script", str(REPOSITORY / "examples/torch-ddp")),
            arguments=["--epochs", "40"],
            train_job_python="/usr/bin/python3",
        )
        running.wait_for(lambda e: e["event"] == "rank" and (e["progress"].get("epoch") or 0) > 1)
        bed.exec(bed.hosts[1], "pkill", "-KILL", "-f", "main.py")
        done = running.end()
        assert done.code == 0, done.result
        assert lab.saved("ddp")["attempts"] == 2
        logs = [(lab.runs_dir / f"ddp/logs/worker-{n}.log").read_text() for n in (0, 1)]
        assert int(re.findall(r"from epoch (\d+)", logs[1])[0]) >= 1
        digests = {re.findall(r"the same in every process: (\w+)", log)[0] for log in logs}
        assert len(digests) == 1
        assert (lab.runs_dir / "ddp/model/weights.pt").is_file()
