"""What the role ``nvidia_driver`` finds: GPUs, the driver's answers, apt's archive."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nvidia_role import FACT, T4, Machine, part

pytest_plugins = ("tests.nvidia_role",)

driver = part("driver")
system = part("system")


def test_gpus_are_nvidias_display_controllers(machine: Machine) -> None:
    machine.device("0000:3b:00.0", driver="nvidia")
    machine.device("0000:3b:00.1", kind=0x040300)  # its sound
    machine.device("0000:86:00.0", kind=0x030000, device=T4)
    machine.device("0000:00:02.0", vendor=0x8086, kind=0x030000)
    machine.device("0000:00:1f.0", kind=0x068000)  # NVSwitch
    (machine.device("0000:3b:00.4") / "physfn").symlink_to("../0000:3b:00.0")
    machine.device("0000:af:00.0", driver="vfio-pci")
    (machine.pci / "0000:ff:00.0").mkdir()
    assert driver.pci_gpus(str(machine.pci)) == [
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
    assert driver.loaded_driver(system.Host(str(machine.root), "")) == expected


def test_query_with_fields_that_a_gpu_does_not_have() -> None:
    line = "0, GPU-1, 0000000F:01:00.0, NVIDIA GB10, [N/A], 12.1, [N/A], Enabled\n"
    assert driver.parse_query(line) == [
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
    topology = driver.parse_topology(
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
    sources = part("apt_sources").apt_sources(system.Host(str(machine.root), ""), "bookworm")
    archive = sources["archive"]
    names = ("uri", "suites", "components", "signed_by")
    assert tuple(archive[name] for name in names) == expected
    assert "http://off" not in sources["uris"]
