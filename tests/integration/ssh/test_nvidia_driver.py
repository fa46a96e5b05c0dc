"""The role ``nvidia_driver`` on a container that stands in for a machine.

Programs that need the kernel or a GPU are made up; apt, systemd and gpg are real.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.set_up_role import Play, role_task, run_tasks, shell, systemd_hosts
from tests.support.testbed import Testbed

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
RAM_DISK = "find /boot -newer /etc/modprobe.d/nvidia-driver-nouveau.conf -name 'initrd*'"

bed = systemd_hosts()


def run(bed: Testbed, *entries: str, **variables: Any) -> Play:
    return run_tasks(bed, [role_task("nvidia_driver", entry, **variables) for entry in entries])


def test_a_driver_is_installed_loaded_and_kept(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-ec", MACHINE, user="root")
    given: dict[str, Any] = {
        "nvidia_driver_pci_root": "/opt/pci",
        "nvidia_driver_packages": ["nvidia-modprobe"],
    }
    assert "needs a reboot, because nouveau is loaded" in run(bed, "main", **given).checked().shown
    assert "/boot/initrd.img" in shell(bed, RAM_DISK)
    shell(bed, "rm /opt/pci/0000:3b:00.0/driver")  # the reboot
    run(bed, "main", **given).checked()
    started = shell(bed, "systemctl cat nvidia-persistenced.service")
    assert "ExecStart=/usr/local/bin/nvidia-persistenced --verbose" in started
    written = json.loads(shell(bed, "cat /etc/ansible/facts.d/nvidia.fact"))
    assert written["driver"] == {"version": "535.261.03", "open": False}
    assert len(shell(bed, OWN).split()) == 4
    assert run(bed, "main", **given).checked().changed == 0
    # The second time, nothing is left to change.
    assert run(bed, "remove", "remove").checked().changed == 1
    assert shell(bed, OWN) == ""
    query = "dpkg-query --show --showformat='${db:Status-Status}' nvidia-modprobe"
    assert shell(bed, query) == "installed"


def test_only_the_expected_key_is_installed(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-ec", SERVER, user="root", stdin=KEY)
    given: dict[str, Any] = {
        "nvidia_driver_repository": "http://127.0.0.1:8000",
        "__nvidia_driver_release": "debian12",
        "__nvidia_driver_key": APT_KEY,
    }
    expected = f"is not the key EB693B3035CD5710E231E123A4B469963BF863CC: it holds {FINGERPRINT}"
    assert expected in run(bed, "install_key", **given).shown
    assert shell(bed, f"ls {APT_KEY}") == ""
    key = {"file": "3bf863cc.pub", "fingerprint": FINGERPRINT}
    given["__nvidia_driver_keys"] = {"debian12": key}
    assert run(bed, "install_key", "install_key", **given).checked().changed == 1
    assert shell(bed, f"cat {APT_KEY}") == KEY
