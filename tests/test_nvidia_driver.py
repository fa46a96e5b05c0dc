"""The role ``nvidia_driver``: what it finds, what it decides, what it installs, whose key it takes.

No GPU and no network: PCI listings, files of the kernel and programs such as nvidia-smi are made.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

ROLE = Path(__file__).resolve().parent.parent / "roles" / "nvidia_driver"
KERNEL = "6.1.0-50-amd64"
MINIMUM = "525.60.13"
FACT = "/etc/ansible/facts.d/nvidia.fact"
BLACKLIST = "/etc/modprobe.d/nvidia-driver-nouveau.conf"
#: Turing's T4, Pascal's P100, Hopper's H100, Blackwell's B200.
T4, P100, H100, B200 = 0x1EB8, 0x15F8, 0x2330, 0x2901


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROLE / "library" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


looking = load("nvidia_look")
choosing = load("nvidia_packages")
keys = load("nvidia_key")


class Machine:
    """A made-up host: its root folder, its PCI listing, its programs."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.pci = folder / "pci"
        self.bin = folder / "bin"
        for path in (self.root, self.pci, self.bin):
            path.mkdir()
        self.distribution("debian", "12", "bookworm")

    def write(self, path: str, text: str) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def distribution(self, name: str, release: str, codename: str = "", like: str = "") -> None:
        self.write(
            "etc/os-release",
            f'ID={name}\nVERSION_ID="{release}"\nVERSION_CODENAME={codename}\nID_LIKE="{like}"\n',
        )

    def device(
        self,
        address: str,
        vendor: int = 0x10DE,
        kind: int = 0x030200,
        device: int = H100,
        driver: str = "",
    ) -> Path:
        folder = self.pci / address
        folder.mkdir()
        for name, number in (("vendor", vendor), ("class", kind), ("device", device)):
            (folder / name).write_text(f"{number:#06x}\n")
        if driver:
            (folder / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        return folder

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def loaded(self, version: str) -> None:
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1\nGCC:\n",
        )

    def on_disk(self, version: str) -> None:
        """Debian calls the module nvidia-current, and modinfo knows no other name."""
        self.program("modinfo", f'case "$*" in *nvidia-current) echo {version};; *) exit 1;; esac')

    def smi(self, *gpus: str, persistence: str = "Enabled") -> None:
        lines = "".join(
            f"{index}, GPU-{index}, 0000{address.upper()}, NVIDIA H100, 81559, 9.0, Disabled,"
            f" {persistence}\n"
            for index, address in enumerate(gpus)
        )
        (self.bin / "query").write_text(lines)
        (self.bin / "matrix").write_text("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n")
        self.program(
            "nvidia-smi",
            f'case "$1" in topo) cat {self.bin}/matrix;; --query*) cat {self.bin}/query;; esac',
        )

    def smi_fails(self, message: str) -> None:
        self.program("nvidia-smi", f'echo "{message}"; exit 9')

    def unit(self, active: str = "active", enabled: str = "enabled", options: str = "") -> None:
        self.program(
            "systemctl",
            f"echo LoadState=loaded; echo ActiveState={active}; echo UnitFileState={enabled};"
            f' echo "ExecStart={{ path=/usr/bin/nvidia-persistenced ;'
            f' argv[]=/usr/bin/nvidia-persistenced --user nvpd{options} ; ignore_errors=no ; }}"',
        )

    def secure_boot(self, value: int) -> None:
        name = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        self.write(name, "").write_bytes(bytes([6, 0, 0, 0, value]))

    def look(self, **options: Any) -> dict[str, Any]:
        params = {
            "minimum": MINIMUM,
            "pci_root": str(self.pci),
            "persistence": True,
            "in_container": "leave",
            "packages": [],
            "fact_path": FACT,
            "blacklist_path": BLACKLIST,
            "root": str(self.root),
        }
        result: dict[str, Any] = looking.look({**params, **options})
        return result

    def todo(self, **options: Any) -> list[str]:
        """What is to do beside the fact, which is to do on every new host."""
        result = self.look(**options)
        return [verb for verb in result["todo"] if verb != "fact"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(looking, "search_path", lambda: f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(
        looking.os, "uname", lambda: os.uname_result(("Linux", "host", KERNEL, "", "x86_64"))
    )
    monkeypatch.setattr(looking.platform, "machine", lambda: "x86_64")
    return made


@pytest.fixture
def good(machine: Machine) -> Machine:
    """One GPU, a good driver, and the daemon."""
    machine.device("0000:3b:00.0", driver="nvidia")
    machine.loaded("535.261.03")
    machine.smi("0000:3b:00.0")
    machine.unit()
    return machine


# What is in the machine


def test_gpus_are_nvidias_display_controllers(machine: Machine) -> None:
    machine.device("0000:3b:00.0", driver="nvidia")
    machine.device("0000:3b:00.1", kind=0x040300)  # its sound
    machine.device("0000:86:00.0", kind=0x030000, device=T4)
    machine.device("0000:00:02.0", vendor=0x8086, kind=0x030000)
    machine.device("0000:00:1f.0", kind=0x068000)  # NVSwitch
    (machine.device("0000:3b:00.4") / "physfn").symlink_to("../0000:3b:00.0")
    machine.device("0000:af:00.0", driver="vfio-pci")
    (machine.pci / "0000:ff:00.0").mkdir()
    assert looking.pci_gpus(str(machine.pci)) == [
        {"pci": "0000:3b:00.0", "device_id": "2330", "kernel_driver": "nvidia"},
        {"pci": "0000:86:00.0", "device_id": "1eb8", "kernel_driver": None},
    ]


@pytest.mark.parametrize("listing", ["pci", "nowhere"])
def test_a_host_without_gpu_is_ready_and_says_so(machine: Machine, listing: str) -> None:
    result = machine.look(pci_root=str(machine.pci.with_name(listing)))
    assert (result["ready"], result["notes"]) == (True, ["no NVIDIA GPU"])


def test_without_gpu_an_old_fact_goes(machine: Machine) -> None:
    machine.write(FACT, "{}\n")
    result = machine.look()
    assert (result["todo"], result["fact"]) == (["fact"], "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVIDIA UNIX x86_64 Kernel Module  535.261.03  Fri Jul 11 00:00:00 UTC 2025",
            {"version": "535.261.03", "open": False},
        ),
        (
            "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (b@h)",
            {"version": "580.95.05", "open": True},
        ),
    ],
)
def test_loaded_driver(machine: Machine, line: str, expected: dict[str, Any]) -> None:
    machine.write("proc/driver/nvidia/version", f"NVRM version: {line}\nGCC version:  gcc 12.2.0\n")
    assert looking.loaded_driver(looking.Host(str(machine.root), "")) == expected


def test_query_with_fields_that_a_gpu_does_not_have() -> None:
    line = "0, GPU-1, 0000000F:01:00.0, NVIDIA GB10, [N/A], 12.1, [N/A], Enabled\n"
    assert looking.parse_query(line) == [
        {
            "index": 0,
            "uuid": "GPU-1",
            "pci": "000f:01:00.0",
            "name": "NVIDIA GB10",
            "memory_mib": None,
            "compute_capability": "12.1",
            "mig": None,
            "persistence": True,
        }
    ]


def test_topology_with_underlined_head_and_empty_columns() -> None:
    topology = looking.parse_topology(
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\tPIX\t0-55,112-167\t0\t\tN/A\n"
        "GPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A\n"
        "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
        "\nLegend:\n\n  X    = Self\n  PIX  = Connection\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    assert topology == {
        "links": {
            "GPU0": {"GPU1": "NV18", "NIC0": "PIX"},
            "GPU1": {"GPU0": "NV18", "NIC0": "SYS"},
            "NIC0": {"GPU0": "PIX", "GPU1": "SYS"},
        },
        "cpu_affinity": {"GPU0": "0-55,112-167", "GPU1": "56-111"},
        "numa_affinity": {"GPU0": "0", "GPU1": "1"},
        "nics": {"NIC0": "mlx5_0"},
    }


# What is left to do


def test_a_good_driver_is_left_alone(good: Machine) -> None:
    assert good.look()["todo"] == ["fact"]
    good.write(FACT, good.look()["fact"])
    result = good.look()
    assert (result["ready"], result["todo"], result["notes"]) == (True, [], [])
    fact = json.loads(result["fact"])
    assert fact["driver"] == {"version": "535.261.03", "open": False}
    assert fact["gpus"][0]["memory_mib"] == 81559
    assert fact["topology"]["cpu_affinity"] == {"GPU0": "0-7"}


def test_a_gpu_that_the_driver_does_not_see_is_told(good: Machine) -> None:
    good.device("0000:af:00.0")
    assert good.look()["notes"] == ["GPUs that the driver does not see: 0000:af:00.0"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, []),
        ({"enabled": "static"}, []),
        ({"active": "inactive"}, ["persistence"]),
        ({"enabled": "disabled"}, ["persistence"]),
    ],
)
def test_the_persistence_daemon_must_run(
    good: Machine, state: dict[str, str], expected: list[str]
) -> None:
    good.unit(**state)
    assert good.todo() == expected
    assert good.todo(persistence=False) == []


def test_a_daemon_that_is_kept_from_its_work_gets_another_command(good: Machine) -> None:
    good.unit(options=" --no-persistence-mode --verbose")
    good.smi("0000:3b:00.0", persistence="Disabled")
    result = good.look()
    assert "persistence" in result["todo"]
    command = "/usr/bin/nvidia-persistenced --user nvpd --verbose"
    assert result["persistence"]["exec_start"] == command


def test_a_missing_daemon_is_told(good: Machine) -> None:
    good.program("systemctl", "echo LoadState=not-found")
    assert good.todo() == []
    assert "no unit nvidia-persistenced.service" in good.look()["notes"][0]


def test_a_bare_machine_gets_a_driver(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    assert machine.todo() == ["install"]


def test_an_old_driver_is_replaced(good: Machine) -> None:
    good.on_disk("535.261.03")
    result = good.look(minimum="570.26")
    assert "install" in result["todo"]
    assert result["notes"] == ["driver 535.261.03 is loaded, older than 570.26"]


def test_a_driver_on_the_disk_is_loaded(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.on_disk("535.261.03")
    assert machine.todo() == ["install"]  # nvidia-smi is not there
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo() == ["load"]
    machine.write("var/lib/dpkg/status", "Package: libcuda1\nStatus: install ok unpacked\n")
    assert machine.todo() == ["install"]


def test_nouveau_needs_a_reboot_after_it_was_kept_out(machine: Machine) -> None:
    machine.device("0000:3b:00.0", driver="nouveau")
    machine.on_disk("535.261.03")
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo() == ["blacklist", "reboot"]
    blacklist = machine.write(BLACKLIST, "blacklist nouveau\n")
    ramdisk = machine.write(f"boot/initrd.img-{KERNEL}", "")
    os.utime(ramdisk, (1, 1))  # of before the file
    assert machine.todo() == ["blacklist", "reboot"]
    os.utime(blacklist, (1, 1))
    result = machine.look()
    assert "reboot" in result["todo"]
    assert "blacklist" not in result["todo"]
    assert "nouveau is loaded" in result["notes"][0]


def test_a_driver_that_was_upgraded_under_the_loaded_one_needs_a_reboot(good: Machine) -> None:
    good.on_disk("550.163.01")
    good.smi_fails("Failed to initialize NVML: Driver/library version mismatch")
    good.write(BLACKLIST, "")
    result = good.look()
    assert "reboot" in result["todo"]
    assert "driver 535.261.03 is loaded, 550.163.01 is installed" in result["notes"][0]


def test_a_loaded_driver_that_does_not_answer_is_a_problem(good: Machine) -> None:
    good.on_disk("535.261.03")
    good.smi_fails("Unable to determine the device handle for GPU0")
    result = good.look()
    assert not result["ready"]
    assert "Unable to determine the device handle" in result["problems"][0]


def test_a_driver_that_no_package_can_replace_is_a_problem(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.write("usr/bin/nvidia-uninstall", "")
    result = machine.look()
    assert "install" not in result["todo"]
    assert "nvidia-uninstall --silent" in result["problems"][0]


@pytest.mark.parametrize(
    ("name", "release", "like", "fits"),
    [
        ("debian", "13", "", True),
        ("debian", "11", "", False),
        ("ubuntu", "24.04", "debian", True),
        ("rocky", "9.6", "rhel centos fedora", True),
        ("rocky", "10.0", "rhel centos fedora", False),
        ("fedora", "43", "", False),
    ],
)
def test_distributions(machine: Machine, name: str, release: str, like: str, fits: bool) -> None:
    machine.device("0000:3b:00.0")
    machine.distribution(name, release, like=like)
    result = machine.look()
    assert ("install" in result["todo"], bool(result["problems"])) == (fits, not fits)


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [(1, False, ["load", "enrol"]), (1, True, ["load"]), (0, False, ["load"])],
)
def test_secure_boot(machine: Machine, value: int, known: bool, expected: list[str]) -> None:
    machine.device("0000:3b:00.0")
    machine.on_disk("535.261.03")
    machine.smi_fails("NVIDIA-SMI has failed")
    machine.secure_boot(value)
    machine.write("var/lib/dkms/mok.pub", "")
    machine.program("mokutil", f'echo "$2 is {"already" if known else "not"} enrolled"')
    result = machine.look()
    assert [verb for verb in result["todo"] if verb != "fact"] == expected
    assert ("mokutil --import" in "".join(result["notes"])) == ("enrol" in expected)


@pytest.mark.parametrize("mark", ["run/systemd/container", ".dockerenv", "proc/1/environ"])
def test_a_container_is_left_alone(machine: Machine, mark: str) -> None:
    machine.device("0000:3b:00.0")
    machine.write(mark, "PATH=/bin\0container=lxc\0")
    assert machine.todo() == []
    assert f"no kernel module for {KERNEL}" in machine.look()["notes"][0]


def test_a_container_gets_packages_when_asked(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.write(".dockerenv", "")
    wanted = {"in_container": "packages", "packages": ["nvidia-smi"]}
    assert machine.todo(**wanted) == ["install"]
    machine.write("var/lib/dpkg/status", "Package: nvidia-smi\nStatus: install ok installed\n")
    assert machine.todo(**wanted) == ["install"]  # nouveau
    machine.write(BLACKLIST, "blacklist nouveau\n")
    assert machine.todo(**wanted) == []
    journal = machine.write("var/lib/dpkg/updates/0001", "")
    assert machine.todo(**wanted) == ["install"]
    journal.unlink()
    assert machine.todo(in_container="packages") == ["install"]
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo(in_container="packages") == []


def test_a_wrong_minimum_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="'new' is no version"):
        machine.look(minimum="new")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "etc/apt/sources.list",
            "# deb http://old bookworm main\n"
            "deb http://mirror/debian bookworm main contrib\n"
            "deb-src http://mirror/debian bookworm main\n"
            "deb http://mirror/debian bookworm-updates main\n"
            "deb http://mirror/security bookworm-security main non-free\n",
            ("http://mirror/debian", ["bookworm", "bookworm-updates"], ["contrib", "main"], ""),
        ),
        (
            "etc/apt/sources.list.d/debian.list",
            "deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian bookworm main\n",
            ("http://mirror/debian", ["bookworm"], ["main"], "/k.gpg"),
        ),
        (
            "etc/apt/sources.list.d/debian.sources",
            "# of the installer\nTypes: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/d.list\n"
            "Suites: bookworm bookworm-updates bookworm-backports\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/d.pgp\n\n"
            "Enabled: no\nTypes: deb\nURIs: http://off\nSuites: bookworm\nComponents: main\n",
            (
                "mirror+file:/etc/apt/mirrors/d.list",
                ["bookworm", "bookworm-updates"],
                ["main"],
                "/usr/share/keyrings/d.pgp",
            ),
        ),
    ],
)
def test_the_distributions_archive_is_found(
    machine: Machine, path: str, text: str, expected: tuple[Any, ...]
) -> None:
    machine.write(path, text)
    machine.write(
        "etc/apt/sources.list.d/nvidia-driver-nonfree.sources",
        f"Types: deb\nURIs: {expected[0]}\nSuites: bookworm\nComponents: non-free\n",
    )
    sources = looking.apt_sources(looking.Host(str(machine.root), ""), "bookworm")
    archive = sources["archive"]
    names = ("uri", "suites", "components", "signed_by")
    assert tuple(archive[name] for name in names) == expected
    assert "http://off" not in sources["uris"]


# Which packages

Ask = Callable[[list[str]], dict[str, str]]


def lists(**versions: str) -> Ask:
    """Package lists; an underscore in a name stands for a dash."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    return lambda names: {name: known[name] for name in names if name in known}


def pick(
    ask: Ask,
    *devices: int,
    distribution: str = "debian",
    release: str = "12",
    kernel: str = KERNEL,
    has_headers: bool = False,
    container: bool = False,
    source: str = "distribution",
    flavour: str = "auto",
    branch: str = "",
    minimum: str = MINIMUM,
    names: tuple[str, ...] = (),
) -> Any:
    host = {
        "family": "redhat" if distribution in ("rocky", "rhel") else "debian",
        "distribution": distribution,
        "release": release,
        "kernel": kernel,
        "headers": has_headers,
        "container": container,
    }
    gpus = [{"device_id": f"{device:04x}"} for device in devices]
    wanted = choosing.Wanted(minimum, source, flavour, branch)
    return choosing.choose(host, gpus, wanted, ask, lambda _: list(names))


BOOKWORM = lists(
    nvidia_kernel_dkms="535.261.03-1",
    nvidia_open_kernel_dkms="535.261.03-1",
    **{f"linux-headers-{KERNEL}": "6.1.176-1", "linux-headers-amd64": "6.1.176-1"},
)
HEADERS = [f"linux-headers-{KERNEL}", "linux-headers-amd64"]


def test_debian() -> None:
    choice = pick(BOOKWORM, H100)
    rest = ["libcuda1", "nvidia-smi", "nvidia-persistenced"]
    assert choice.packages == [*HEADERS, "nvidia-kernel-dkms", *rest]
    assert (choice.version, choice.built) == ("535.261.03", True)
    opened = pick(BOOKWORM, H100, flavour="open")
    assert opened.packages == [*HEADERS, "nvidia-open-kernel-dkms", *rest]


def test_headers_that_are_there_are_not_asked_for() -> None:
    # those of a kernel to come are
    assert pick(BOOKWORM, H100, has_headers=True).packages[0] == "linux-headers-amd64"


def test_a_container_gets_no_headers() -> None:
    assert pick(BOOKWORM, H100, kernel="6.18.44", container=True).packages[0] == (
        "nvidia-kernel-dkms"
    )


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [
        ("6.1.0-9-amd64", "linux-image-amd64 linux-headers-amd64"),
        ("6.12.94+deb13-cloud-amd64", "linux-image-amd64 linux-headers-amd64"),
        ("6.18.44-custom", "linux-image-amd64 linux-headers-amd64"),
    ],
)
def test_headers_that_the_archive_has_no_longer(kernel: str, remedy: str) -> None:
    message = f"no {re.escape(f'linux-headers-{kernel}')}.*{remedy}"
    with pytest.raises(choosing.PackageError, match=message):
        pick(BOOKWORM, H100, kernel=kernel)


@pytest.mark.parametrize(
    ("kernel", "flavour"),
    [
        ("6.1.0-50-cloud-amd64", "cloud-amd64"),
        ("6.12.94+deb13-amd64", "amd64"),
        ("6.8.0-1044-azure-fde", "azure-fde"),
    ],
)
def test_the_flavour_of_a_kernel(kernel: str, flavour: str) -> None:
    found = choosing.headers(
        {"family": "debian", "distribution": "debian", "kernel": kernel, "headers": False},
        lambda names: dict.fromkeys(names, "1"),
    )
    assert found == [f"linux-headers-{kernel}", f"linux-headers-{flavour}"]


@pytest.mark.parametrize(
    ("options", "devices", "message"),
    [
        ({"minimum": "570.26"}, [H100], "driver 535.261.03; TensorFlow needs 570.26"),
        ({}, [B200], "the GPU 10de:2901 needs 570 or newer.*nvidia_driver_source to nvidia"),
        ({"flavour": "open"}, [P100], "older than Turing.*flavour to proprietary"),
        ({"flavour": "proprietary", "source": "nvidia"}, [B200], "flavour to open"),
        ({"source": "nvidia"}, [P100, B200], "No one driver drives all GPUs"),
        ({"branch": "550"}, [H100], "leave nvidia_driver_branch empty"),
        ({"source": "nvidia", "branch": "590"}, [P100], "branch to 580"),
        ({"source": "nvidia"}, [H100], "NVIDIA repository offers no nvidia-kernel-open-dkms"),
        ({"distribution": "rocky"}, [H100], "rocky has no NVIDIA driver of its own"),
    ],
)
def test_what_cannot_work_is_refused(
    options: dict[str, Any], devices: list[int], message: str
) -> None:
    with pytest.raises(choosing.PackageError, match=message):
        pick(BOOKWORM, *devices, **options)


def ubuntu(*branches: str, signed: tuple[str, ...] = ()) -> tuple[Ask, tuple[str, ...]]:
    """Ubuntu's lists with some branches, such as ``570-server-open``."""
    known = {}
    for branch in branches:
        number = branch.split("-")[0]
        known[f"nvidia-headless-no-dkms-{branch}"] = f"{number}.1-0ubuntu1"
        known[f"nvidia-dkms-{branch}"] = f"{number}.1-0ubuntu1"
        known[f"nvidia-utils-{number}-server"] = f"{number}.1-0ubuntu1"
        if branch in signed:
            known[f"linux-modules-nvidia-{branch}-5.15.0-119-generic"] = "5.15.0-119.129"
            known[f"linux-modules-nvidia-{branch}-generic"] = "5.15.0.120"
    known["linux-headers-5.15.0-119-generic"] = "5.15.0-119.129"
    names = tuple(name for name in known if name.startswith("nvidia-headless"))
    return lambda asked: {name: known[name] for name in asked if name in known}, names


UBUNTU: dict[str, Any] = {
    "distribution": "ubuntu",
    "release": "22.04",
    "kernel": "5.15.0-119-generic",
}


def test_ubuntu_takes_signed_modules_before_a_newer_branch() -> None:
    ask, names = ubuntu(
        "535-server", "570-server-open", "580-server-open", signed=("535-server", "570-server-open")
    )
    choice = pick(ask, H100, names=names, **UBUNTU)
    assert choice.packages == [
        "linux-modules-nvidia-570-server-open-5.15.0-119-generic",
        "linux-modules-nvidia-570-server-open-generic",
        "nvidia-headless-no-dkms-570-server-open",
        "nvidia-utils-570-server",
    ]
    assert not choice.built


def test_ubuntu_builds_the_newest_branch_where_none_is_signed() -> None:
    ask, names = ubuntu("470-server", "535-server", "580-server-open")
    choice = pick(ask, H100, names=names, **UBUNTU)
    assert choice.packages == [
        "linux-headers-5.15.0-119-generic",
        "nvidia-dkms-580-server-open",
        "nvidia-headless-no-dkms-580-server-open",
        "nvidia-utils-580-server",
    ]
    assert choice.built


def test_ubuntu_and_an_old_gpu() -> None:
    ask, names = ubuntu(
        "535-server", "580-server", "580-server-open", "590-server", signed=("590-server",)
    )
    assert pick(ask, P100, names=names, **UBUNTU).version == "580.1"
    with pytest.raises(choosing.PackageError, match="nvidia-headless-no-dkms-550-server"):
        pick(ask, P100, names=names, branch="550", **UBUNTU)


@pytest.mark.parametrize(
    ("distribution", "devices", "branch", "expected"),
    [
        ("debian", [H100], "", ["nvidia-kernel-open-dkms", "nvidia-driver-cuda"]),
        (
            "debian",
            [P100],
            "",
            ["nvidia-driver-pinning-580", "nvidia-kernel-dkms", "nvidia-driver-cuda"],
        ),
        ("ubuntu", [H100], "", ["nvidia-dkms-open", "libnvidia-compute"]),
        (
            "ubuntu",
            [T4],
            "580",
            [
                "nvidia-driver-pinning-580",
                "nvidia-dkms-580-open",
                "libnvidia-compute-580",
                "nvidia-utils-580",
                "nvidia-compute-utils-580",
            ],
        ),
    ],
)
def test_nvidias_repository(
    distribution: str, devices: list[int], branch: str, expected: list[str]
) -> None:
    def ask(names: list[str]) -> dict[str, str]:
        versions = {name: "610.43.02-1" for name in names if name != "nvidia-smi"}
        versions |= {name: "580.95.05-1" for name in names if "580" in name}
        return versions

    choice = pick(
        ask, *devices, distribution=distribution, branch=branch, source="nvidia", has_headers=True
    )
    extra = [] if branch and distribution == "ubuntu" else ["nvidia-persistenced"]
    assert choice.packages[1:] == [*expected, *extra]


@pytest.mark.parametrize(
    ("devices", "branch", "stream", "kernel"),
    [
        ([H100], "", "open-dkms", "kmod-nvidia-open-dkms"),
        ([T4], "580", "580-open", "kmod-nvidia-open-dkms"),
        ([P100], "", "580-dkms", "kmod-nvidia-latest-dkms"),
    ],
)
def test_red_hat(devices: list[int], branch: str, stream: str, kernel: str) -> None:
    running = "5.14.0-570.12.1.el9_6.x86_64"
    choice = pick(
        lambda names: dict.fromkeys(names, "1"),
        *devices,
        distribution="rocky",
        kernel=running,
        branch=branch,
        source="nvidia",
    )
    assert choice.stream == stream
    assert choice.packages == [
        f"kernel-devel-{running}",
        "kernel-devel",
        kernel,
        "nvidia-driver-cuda",
        "nvidia-persistenced",
    ]


def test_apt_cache_policy() -> None:
    policy = choosing.parse_policy(
        "nvidia-smi:\n  Installed: (none)\n  Candidate: 535.261.03-1\n  Version table:\n"
        "     535.261.03-1 500\n        500 http://mirror bookworm/non-free amd64 Packages\n"
        "nvidia-tesla:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
    )
    assert policy == {
        "nvidia-smi": ("(none)", "535.261.03-1"),
        "nvidia-tesla": ("(none)", "(none)"),
    }
    assert choosing.upstream("3:570.86.15-0ubuntu1") == "570.86.15"


# Whose key

#: The example of RFC 9580, appendix A.1, and its fingerprint.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----
Comment: an example

xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
Q+47JAY=
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "C959BDBAFA32A2F89A153B678CFDE12197965A9A"


def test_fingerprint() -> None:
    assert keys.fingerprints(KEY) == [FINGERPRINT]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>blocked</html>", "0 armored public keys"),
        (KEY + KEY, "2 armored public keys"),
        (KEY.replace("Q+47JAY=\n", ""), "cut off"),
        (KEY.replace("xjME", "xjMF"), "not of version 4"),
        (KEY.replace("JAY=", "JAc="), "it holds the key [0-9A-F]{40}"),
        (KEY.replace("xjME", "x!ME"), "base64"),
    ],
)
def test_another_key_is_refused(text: str, message: str) -> None:
    with pytest.raises(keys.KeyFileError, match=message):
        keys.check(text, FINGERPRINT)


def test_a_second_key_in_the_block_is_refused() -> None:
    data = keys.unarmor(KEY)
    body = base64.b64encode(data + data).decode()
    begin, *_, end = KEY.splitlines()
    with pytest.raises(keys.KeyFileError, match=f"{FINGERPRINT} and {FINGERPRINT}"):
        keys.check(f"{begin}\n\n{body}\n{end}\n", FINGERPRINT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "good.pub").write_text(KEY)
    (folder / "other.pub").write_text(KEY.replace("JAY=", "JAc="))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    thread.join()


def run_key_module(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        keys.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_key_is_brought_once(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keyrings" / "key.asc"
    wanted = {"url": f"{server}/good.pub", "path": str(path), "fingerprint": FINGERPRINT.lower()}
    checked = run_key_module(capsys, _ansible_check_mode=True, **wanted)
    assert (checked["changed"], path.exists()) == (True, False)
    assert run_key_module(capsys, **wanted)["changed"]
    assert path.read_text() == KEY
    assert path.stat().st_mode & 0o777 == 0o644
    assert not run_key_module(capsys, **wanted)["changed"]
    path.write_text(KEY + KEY)
    assert run_key_module(capsys, **wanted)["changed"]


@pytest.mark.parametrize(
    ("name", "message"), [("other.pub", "is not the key"), ("none.pub", "cannot be fetched")]
)
def test_a_wrong_key_is_never_written(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    path = tmp_path / "key.asc"
    wanted = {"url": f"{server}/{name}", "path": str(path), "fingerprint": FINGERPRINT}
    result = run_key_module(capsys, **wanted)
    assert result["failed"]
    assert message in result["msg"]
    assert not list(tmp_path.glob("key*"))


def test_every_distribution_has_a_repository_with_a_pinned_key() -> None:
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    repositories = variables["__nvidia_driver_repositories"]
    expected = {"rhel9"}
    for name in ("debian", "ubuntu"):
        expected |= {name + release.replace(".", "") for release in looking.SUPPORTED[name]}
    assert set(repositories) == expected
    for repository in repositories.values():
        fingerprint = repository["fingerprint"]
        assert len(bytes.fromhex(fingerprint)) == 20
        assert fingerprint.endswith(repository["key"].removesuffix(".pub").upper())
