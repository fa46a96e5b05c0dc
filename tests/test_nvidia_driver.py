"""The role ``nvidia_driver`` from a foreign playbook, on a container that stands in for a machine.

Programs that need the kernel or a GPU are made up; apt, systemd and gpg are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nvidia_role import ROLE
from tests.testbed import Testbed, docker_available, running_testbed

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
OWN = "find /etc -name 'nvidia-driver*' -o -name nvidia.fact | sort"
#: The example of RFC 9580, appendix A.1.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
Q+47JAY=
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "C959BDBAFA32A2F89A153B678CFDE12197965A9A"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(1, tmp_path_factory.mktemp("bed"), systemd=True) as made:
        made.exec("host-0", "sh", "-ec", MACHINE, user="root")
        yield made


def run(bed: Testbed, tasks: str = "main", **variables: Any) -> tuple[int, int, str]:
    """Run the role from a playbook outside of the project; return status, changes and output."""
    role = {"name": "nvidia_driver", "tasks_from": tasks}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"include_role": role}]}
    playbook = bed.directory / "play.yml"
    playbook.write_text(json.dumps([play]))
    given = {"nvidia_driver_pci_root": "/opt/pci", "nvidia_driver_packages": ["nvidia-modprobe"]}
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "ansible-playbook"), str(playbook)),
            *("-i", str(bed.directory / "inventory"), "-e", json.dumps({**given, **variables})),
        ],
        cwd=bed.directory,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ROLE.parent), "ANSIBLE_PIPELINING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    changes = re.search(r"changed=(\d+)", done.stdout)
    return done.returncode, int(changes.group(1)) if changes else -1, done.stdout + done.stderr


def shell(bed: Testbed, command: str) -> str:
    return bed.exec("host-0", "sh", "-c", command, user="root").stdout


def test_a_driver_is_installed_loaded_and_kept(bed: Testbed) -> None:
    status, _, shown = run(bed)
    assert status == 0, shown
    assert "needs a reboot, because nouveau is loaded" in shown
    assert "installed" in shell(bed, "dpkg-query --show -f '${db:Status-Status}' nvidia-modprobe")
    assert "blacklist nouveau" in shell(bed, "cat /etc/modprobe.d/nvidia-driver-nouveau.conf")
    newer = "find /boot -newer /etc/modprobe.d/nvidia-driver-nouveau.conf -name 'initrd*'"
    assert shell(bed, newer)

    shell(bed, "rm /opt/pci/0000:3b:00.0/driver")  # as after a reboot
    status, _, shown = run(bed)
    assert status == 0, shown
    fact = json.loads(shell(bed, "cat /etc/ansible/facts.d/nvidia.fact"))
    assert fact["driver"] == {"version": "535.261.03", "open": False}
    assert fact["gpus"][0]["memory_mib"] == 81559
    assert "persistenced --verbose" in shell(bed, "systemctl cat nvidia-persistenced.service")
    assert shell(bed, "ls /run/persistence")
    assert run(bed)[:2] == (0, 0)

    assert len(shell(bed, OWN).split()) == 4
    assert run(bed, "remove")[:2] == (0, 4)
    assert shell(bed, OWN) == ""


def test_only_the_expected_key_is_installed(bed: Testbed) -> None:
    serve = "mkdir -p /srv/debian12/x86_64; cd /srv; cat > debian12/x86_64/3bf863cc.pub; "
    serve += "which gpg || apt-get -qq install --no-install-recommends --yes gnupg; "
    serve += "(setsid python3 -m http.server 8000 >/dev/null 2>&1 &)"
    bed.exec("host-0", "sh", "-c", serve, user="root", stdin=KEY)
    key = {"file": "3bf863cc.pub", "fingerprint": FINGERPRINT}
    wanted = {
        "nvidia_driver_repository": "http://127.0.0.1:8000",
        "__nvidia_driver_release": "debian12",
        "__nvidia_driver_key": "/etc/apt/keyrings/nvidia-driver-cuda.asc",
    }
    status, _, shown = run(bed, "install_key", **wanted)
    assert status != 0
    assert f"is not the key EB693B3035CD5710E231E123A4B469963BF863CC: it holds {FINGERPRINT}" in (
        " ".join(shown.split())
    )
    assert shell(bed, OWN) == ""
    wanted["__nvidia_driver_keys"] = {"debian12": key}
    assert run(bed, "install_key", **wanted)[:2] == (0, 1)
    assert shell(bed, "cat " + wanted["__nvidia_driver_key"]) == KEY
