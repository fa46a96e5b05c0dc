"""The role ``nvidia_driver`` from a foreign playbook, on a container that stands in for a machine.

Programs that need the kernel or a GPU are made up; apt, systemd and gpg are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvidia_role import ROLE
from tests.support.testbed import Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker

MACHINE = r"""
rm -f /.dockerenv /run/systemd/container
gpu=/opt/pci/0000:3b:00.0; mkdir -p $gpu; cd $gpu
echo 0x10de > vendor; echo 0x030200 > class; echo 0x2330 > device
ln -s /sys/bus/pci/drivers/nouveau driver
touch -d 2000-01-01 /boot/initrd.img-$(uname -r)
cd /usr/local/bin
program() { { echo '#!/bin/sh'; cat; } > "$1"; chmod +x "$1"; }
program dkms <<'END'
echo Building; touch /opt/built
END
program modinfo <<'END'
case "$*" in *nvidia-current) test -e /opt/built && echo 535.261.03;; *) exit 1;; esac
END
program modprobe <<'END'
mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  " > /proc/driver/nvidia/version
END
program update-initramfs <<'END'
touch /boot/initrd.img-$(uname -r)
END
program nvidia-smi <<'END'
test -e /run/persistence && mode=Enabled || mode=Disabled
echo "00000000:3B:00.0, 0, GPU-1, NVIDIA H100, 81559, 9.0, Disabled, $mode"
END
program nvidia-persistenced <<'END'
case "$*" in *--no-persistence-mode*) ;; *) touch /run/persistence;; esac
END
printf '%s\n' '[Service]' Type=oneshot RemainAfterExit=yes \
  'ExecStart=/usr/local/bin/nvidia-persistenced --no-persistence-mode --verbose' \
  '[Install]' WantedBy=multi-user.target > /etc/systemd/system/nvidia-persistenced.service
systemctl enable --now nvidia-persistenced.service
"""
#: The example of RFC 9580, appendix A.1.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
Q+47JAY=
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "C959BDBAFA32A2F89A153B678CFDE12197965A9A"
SERVER = """
apt-get -qq install --no-install-recommends --yes gnupg
mkdir -p /srv/debian12/x86_64; cat > /srv/debian12/x86_64/3bf863cc.pub
cd /srv; setsid python3 -m http.server 8000 > /dev/null 2>&1 &
"""
APT_KEY = "/etc/apt/keyrings/nvidia-driver-cuda.asc"
OWN = "find /etc -name 'nvidia-driver*' -o -name nvidia.fact 2> /dev/null | sort"
FILES = "cat /etc/modprobe.d/nvidia-driver-nouveau.conf; systemctl cat nvidia-persistenced.service"
FACT = "cat /etc/ansible/facts.d/nvidia.fact"
RAM_DISK = "find /boot -newer /etc/modprobe.d/nvidia-driver-nouveau.conf -name 'initrd*'"
REBOOTED = "sudo rm /opt/pci/0000:3b:00.0/driver"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(1, tmp_path_factory.mktemp("bed"), systemd=True) as made:
        made.exec("host-0", "sh", "-ec", MACHINE, user="root")
        yield made


def run(bed: Testbed, *steps: dict[str, Any], **variables: Any) -> list[tuple[int, str]]:
    """Follow steps in a playbook outside of the project, each a play of its own.

    Returns:
        Of each step, how much it changed, and its results as text.
    """
    plays = [{"hosts": "all", "gather_facts": False, "tasks": [step]} for step in steps]
    (bed.directory / "play.yml").write_text(json.dumps(plays))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "play.yml", "-i", "inventory"]
    settings = {
        **{"ANSIBLE_ROLES_PATH": str(ROLE.parent), "ANSIBLE_PIPELINING": "1"},
        **{"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"},
    }
    done = subprocess.run(
        [*command, "-e", json.dumps(variables)],
        cwd=bed.directory,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = []
    for play in json.loads(done.stdout)["plays"]:
        results = [result for task in play["tasks"] for result in task["hosts"].values()]
        found.append((sum(result.get("changed", False) for result in results), json.dumps(results)))
    return found


def role(tasks: str = "main") -> dict[str, Any]:
    return {"include_role": {"name": "nvidia_driver", "tasks_from": tasks}}


def test_a_driver_is_installed_loaded_and_kept(bed: Testbed) -> None:
    shells = [{"raw": command, "changed_when": False} for command in (RAM_DISK, REBOOTED)]
    reads = [{"raw": command, "changed_when": False} for command in (FILES, FACT, OWN)]
    steps = [role(), *shells, role(), *reads, role(), role("remove"), role("remove"), reads[-1]]
    first, ram_disk, _, _, files, fact, own, again, removed, removed_again, left = run(
        bed,
        *steps,
        nvidia_driver_pci_root="/opt/pci",
        nvidia_driver_packages=["nvidia-modprobe"],
    )
    assert "needs a reboot, because nouveau is loaded" in first[1]
    assert "/boot/initrd.img" in ram_disk[1]
    assert "blacklist nouveau" in files[1]
    assert "ExecStart=/usr/local/bin/nvidia-persistenced --verbose" in files[1]
    written = json.loads(json.loads(fact[1])[0]["stdout"])
    assert written["driver"] == {"version": "535.261.03", "open": False}
    assert written["gpus"][0]["memory_mib"] == 81559
    assert len(json.loads(own[1])[0]["stdout_lines"]) == 4
    assert (again[0], removed[0] > 0, removed_again[0]) == (0, True, 0)
    assert json.loads(left[1])[0]["stdout"] == ""
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status}", "nvidia-modprobe")
    assert bed.exec("host-0", *query).stdout == "installed"


def test_only_the_expected_key_is_installed(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-ec", SERVER, user="root", stdin=KEY)
    refused = {"block": [role("install_key")], "rescue": [{"raw": f"test ! -e {APT_KEY}"}]}
    keys = {"debian12": {"file": "3bf863cc.pub", "fingerprint": FINGERPRINT}}
    accepted = {**role("install_key"), "vars": {"__nvidia_driver_keys": keys}}
    found = run(
        bed,
        *(refused, accepted, accepted),
        nvidia_driver_repository="http://127.0.0.1:8000",
        __nvidia_driver_release="debian12",
        __nvidia_driver_key=APT_KEY,
    )
    expected = f"is not the key EB693B3035CD5710E231E123A4B469963BF863CC: it holds {FINGERPRINT}"
    assert expected in found[0][1]
    assert [step[0] for step in found[1:]] == [1, 0]
    assert bed.exec("host-0", "cat", APT_KEY).stdout == KEY
