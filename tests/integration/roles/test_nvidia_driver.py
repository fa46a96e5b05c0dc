"""The role ``nvidia_driver`` on a container that simulates a machine, and on a plain one.

The GPU is a fake. In the first container, programs that need the GPU or the kernel are fakes, too.
apt, systemd and gpg are real. Only small packages are installed, because the driver has 150 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.support.set_up_role import Play, on_each, role_task, run_tasks, shell, systemd_hosts
from tests.support.testbed import BOOKWORM, TRIXIE, Testbed

pytestmark = pytest.mark.docker

GPU = """
gpu=/opt/pci/0000:3b:00.0; mkdir -p $gpu; cd $gpu
echo 0x10de > vendor; echo 0x030200 > class; echo 0x2330 > device
"""
MACHINE = r"""
rm -f /.dockerenv /run/systemd/container
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
apt-get -qq update && apt-get -qq install --no-install-recommends --yes gnupg
mkdir -p /srv/debian12/x86_64; cat > /srv/debian12/x86_64/3bf863cc.pub
cd /srv; setsid python3 -m http.server 8000 > /dev/null 2>&1 &
"""
APT_KEY = "/etc/apt/keyrings/nvidia-driver-cuda.asc"
#: Records every 1 ms whether the key's folder has a file.
WATCH = f"""
: > /tmp/seen; systemd-run --quiet --collect --unit=watch python3 -c 'if True:
    import os, time
    while True:
        if os.path.exists("{APT_KEY}"):
            open("/tmp/seen", "a").write("seen")
        time.sleep(0.001)
'
"""
#: A pgrep that finds the installer of a deep-learning image once.
IMAGE_INSTALLS = """
cat > /usr/local/bin/pgrep <<'END'
#!/bin/sh
[ "$*" = "--full /opt/deeplearning/[a-z/]*install[a-z-]*driver" ] || exit 3
mkdir /tmp/asked 2> /dev/null
END
chmod +x /usr/local/bin/pgrep
"""
FACT = "/etc/ansible/facts.d/nvidia.fact"
OWN = "find /etc -name 'nvidia-driver*' -o -name nvidia.fact 2> /dev/null | sort"
RAM_DISK = "find /boot -newer /etc/modprobe.d/nvidia-driver-nouveau.conf -name 'initrd*'"

bed = systemd_hosts(2, bases=(BOOKWORM, TRIXIE))


def run(bed: Testbed, *entries: str, options: Sequence[str] = (), **variables: Any) -> Play:
    tasks = [role_task("nvidia_driver", entry, **variables) for entry in entries]
    return run_tasks(bed, tasks, *options)


def test_a_driver_is_installed_loaded_and_kept(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-ec", GPU + MACHINE, user="root")
    shell(bed, GPU, 1, check=True)
    packages = {"host-0": ["nvidia-modprobe"], "host-1": ["nvidia-smi"]}
    given: dict[str, Any] = {
        "nvidia_driver_pci_root": "/opt/pci",
        "nvidia_driver_in_container": "packages",
        "nvidia_driver_packages": f"{{{{ {packages}[inventory_hostname] }}}}",
    }
    checked = run(bed, "main", options=["--check", "--limit", "host-1"], **given).checked()
    assert "Install nvidia-smi]" in checked.shown
    assert shell(bed, OWN, 1) == ""
    shell(bed, IMAGE_INSTALLS, check=True)
    installed = run(bed, "main", **given).checked().shown
    assert "needs a reboot, because nouveau is loaded" in installed
    first, _, later = installed.partition("Await image | Check the driver again")
    assert "Wait until the image has installed its driver" in first
    assert "Install nvidia-modprobe" in later
    assert "/boot/initrd.img" in shell(bed, RAM_DISK)
    check_the_container(bed)
    shell(bed, "rm /opt/pci/0000:3b:00.0/driver")  # the reboot
    run(bed, "main", options=["--limit", "host-0"], **given).checked()
    started = shell(bed, "systemctl cat nvidia-persistenced.service")
    assert "ExecStart=/usr/local/bin/nvidia-persistenced --verbose" in started
    written = json.loads(shell(bed, f"cat {FACT}"))
    assert written["driver"] == {"version": "535.261.03", "open": False}
    assert len(shell(bed, OWN).split()) == 4
    assert run(bed, "main", **given).checked().counts["host-0"]["changed"] == 0
    # The second run changes nothing.
    assert run(bed, "remove", "remove").checked().counts["host-0"]["changed"] == 1
    assert on_each(bed, OWN) == ["", ""]
    query = "dpkg-query --show --showformat='${db:Status-Status}' nvidia-modprobe"
    assert shell(bed, query) == "installed"


def check_the_container(bed: Testbed) -> None:
    """Debian's own packages are installed, and the fact has no driver."""
    query = "dpkg-query --show --showformat='${db:Status-Status} ${Version}\\n'"
    shown = shell(bed, f"{query} nvidia-smi libnvidia-ml1", 1).split()
    assert shown[::2] == ["installed", "installed"]
    assert Version(shown[1].partition("-")[0]) >= Version("525.60.13")
    # Without a driver, nvidia-smi fails with a message, which shows that it runs.
    assert re.search("NVML|NVIDIA driver", shell(bed, "nvidia-smi", 1))
    written = json.loads(shell(bed, f"cat {FACT}", 1))
    assert [(gpu["pci"], gpu["device_id"]) for gpu in written["gpus"]] == [("0000:3b:00.0", "2330")]
    assert written["driver"] is None
    rule = "grep -x 'blacklist nouveau' /etc/modprobe.d/nvidia-driver-nouveau.conf"
    assert shell(bed, rule, 1) == "blacklist nouveau\n"


@pytest.mark.soak
def test_only_the_expected_key_is_installed(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-ec", SERVER, user="root", stdin=KEY)
    given: dict[str, Any] = {
        "options": ["--limit", "host-0"],
        "nvidia_driver_repository": "http://127.0.0.1:8000",
        "__nvidia_driver_release": "debian12",
        "__nvidia_driver_key": APT_KEY,
    }
    wanted = "EB693B3035CD5710E231E123A4B469963BF863CC"
    expected = f"is not the key {wanted}, but contains {FINGERPRINT}"
    shell(bed, f"mkdir -p {Path(APT_KEY).parent} && {WATCH}", check=True)
    assert expected in run(bed, "install_key", **given).shown
    assert shell(bed, f"ls {APT_KEY}") == ""
    assert shell(bed, "systemctl stop watch; cat /tmp/seen") == "", "never in its place"
    key = {"file": "3bf863cc.pub", "fingerprint": FINGERPRINT}
    given["__nvidia_driver_keys"] = {"debian12": key}
    check = {**given, "options": ["--check", *given["options"]]}
    assert run(bed, "install_key", **check).checked().changed == 1
    assert shell(bed, f"ls {APT_KEY}") == ""
    assert run(bed, "install_key", "install_key", **given).checked().changed == 1
    assert shell(bed, f"cat {APT_KEY}") == KEY
    # A replaced key is not kept, and the right key is not downloaded again.
    shell(bed, f"echo other > {APT_KEY}; chmod 600 {APT_KEY}", check=True)
    assert run(bed, "install_key", **given).checked().changed == 1
    shell(bed, f"rm /srv/debian12/x86_64/3bf863cc.pub; chmod 600 {APT_KEY}", check=True)
    assert run(bed, "install_key", **given).checked().changed == 1
    assert run(bed, "install_key", **given).checked().changed == 0
    assert run(bed, "install_key", **check).checked().changed == 0
    assert shell(bed, f"cat {APT_KEY}; stat -c %a {APT_KEY}; ls -d /tmp/nvidia*") == f"{KEY}644\n"
