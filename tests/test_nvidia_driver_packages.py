"""Which packages the role ``nvidia_driver`` chooses, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.nvidia_role import B200, H100, KERNEL, P100, T4, Decision, RefusalError

RUNNING = "5.15.0-119-generic"
EL9 = "5.14.0-570.12.1.el9_6.x86_64"
HEADERS = [f"linux-headers-{KERNEL}", "linux-headers-amd64"]
REST = ["libcuda1", "nvidia-smi", "nvidia-persistenced"]
BOOKWORM = {
    "nvidia-kernel-dkms": "535.261.03-1",
    "nvidia-open-kernel-dkms": "535.261.03-1",
    **dict.fromkeys(HEADERS, "6.1.176-1"),
}
HOSTS = {
    "debian": ("Debian", "12", "Debian", KERNEL),
    "trixie": ("Debian", "13", "Debian", KERNEL),
    "ubuntu": ("Ubuntu", "22.04", "Debian", RUNNING),
    "rocky": ("Rocky", "9.6", "RedHat", EL9),
}


def decide(
    name: str = "debian",
    devices: tuple[str, ...] = (H100,),
    offered: dict[str, str] | None = None,
    kernel: str = "",
    machine: str = "x86_64",
    state: dict[str, Any] | None = None,
    **inputs: Any,
) -> Decision:
    known = HOSTS.get(name) or tuple(name.split())
    host = {
        "distribution": known[0],
        "distribution_version": known[1],
        "distribution_major_version": known[1].split(".")[0],
        "os_family": known[2],
        "kernel": kernel or known[3],
        "architecture": machine,
    }
    bare = {"module_version": None, "interrupted": False, "uninstaller": False, "headers": False}
    bare |= {"secure_boot": False, "enrolled": False, "container": False, "nouveau": False}
    facts = {
        "gpus": [{"device_id": device, "pci": "0000:3b:00.0"} for device in devices],
        "driver": None,
        "smi": {"installed": False, "error": None},
        "host": {**bare, **(state or {})},
    }
    inputs = {f"nvidia_driver_{key}": value for key, value in inputs.items()}
    made = Decision(facts, host, BOOKWORM if offered is None else offered, **inputs)
    return made.run("preflight").run("choose")


def branches(*names: str, signed: tuple[str, ...] = ()) -> dict[str, str]:
    """Ubuntu's lists with some branches, such as ``570-server-open``."""
    known = {}
    for branch in names:
        number = branch.split("-")[0]
        for package in (f"headless-no-dkms-{branch}", f"dkms-{branch}", f"utils-{number}-server"):
            known[f"nvidia-{package}"] = f"{number}.1-0ubuntu1"
        if branch in signed:
            known[f"linux-modules-nvidia-{branch}-{RUNNING}"] = "5.15.0-119.129"
            known[f"linux-modules-nvidia-{branch}-generic"] = "5.15.0.120"
    return {**known, f"linux-headers-{RUNNING}": "5.15.0-119.129"}


NVIDIA = dict.fromkeys(
    (
        *("nvidia-kernel-open-dkms", "nvidia-kernel-dkms", "nvidia-driver-cuda"),
        *("nvidia-dkms-open", "libnvidia-compute", "nvidia-persistenced"),
    ),
    "1:610.43.02-1",
) | dict.fromkeys(
    (
        *("nvidia-driver-pinning-580", "nvidia-dkms-580-open", "libnvidia-compute-580"),
        *("nvidia-utils-580", "nvidia-compute-utils-580"),
    ),
    "580.95.05-1",
)
THERE = {"headers": True}
CHOICES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "debian": ({}, [*HEADERS, "nvidia-kernel-dkms", *REST]),
    "debian, open": ({"flavour": "open"}, [*HEADERS, "nvidia-open-kernel-dkms", *REST]),
    "a branch that NVIDIA recommends the open module for": (
        {"name": "trixie", "offered": dict.fromkeys(BOOKWORM, "570.86.15-1"), "state": THERE},
        ["linux-headers-amd64", "nvidia-open-kernel-dkms", *REST],
    ),
    "the headers are there; only those of kernels to come are chosen": (
        {"state": THERE},
        ["linux-headers-amd64", "nvidia-kernel-dkms", *REST],
    ),
    "a container has the kernel of its machine": (
        {"kernel": "6.18.44", "state": {"container": True}},
        ["nvidia-kernel-dkms", *REST],
    ),
    "the user's packages": ({"packages": ["nvidia-smi"], "offered": {}}, ["nvidia-smi"]),
    "ubuntu, signed modules before a newer branch": (
        {
            "name": "ubuntu",
            "offered": branches(
                *("535-server", "570-server-open", "580-server-open"),
                signed=("535-server", "570-server-open"),
            ),
        },
        [
            f"linux-modules-nvidia-570-server-open-{RUNNING}",
            *("nvidia-headless-no-dkms-570-server-open", "nvidia-utils-570-server"),
            "linux-modules-nvidia-570-server-open-generic",
        ],
    ),
    "ubuntu, the newest branch if none is signed": (
        {"name": "ubuntu", "offered": branches("470-server", "535-server", "580-server-open")},
        [
            *(f"linux-headers-{RUNNING}", "nvidia-dkms-580-server-open"),
            *("nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server"),
        ],
    ),
    "ubuntu, an old GPU": (
        {
            "name": "ubuntu",
            "devices": (P100,),
            "offered": branches(
                *("535-server", "580-server", "580-server-open", "590-server"),
                signed=("590-server",),
            ),
        },
        [
            *(f"linux-headers-{RUNNING}", "nvidia-dkms-580-server"),
            *("nvidia-headless-no-dkms-580-server", "nvidia-utils-580-server"),
        ],
    ),
    "nvidia, debian": (
        {"source": "nvidia", "offered": NVIDIA, "state": THERE},
        ["nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced"],
    ),
    "nvidia, debian, an old GPU": (
        {"source": "nvidia", "offered": NVIDIA, "state": THERE, "devices": (P100,)},
        [
            *("nvidia-driver-pinning-580", "nvidia-kernel-dkms", "nvidia-driver-cuda"),
            "nvidia-persistenced",
        ],
    ),
    "nvidia, ubuntu": (
        {"name": "ubuntu", "source": "nvidia", "offered": NVIDIA, "state": THERE},
        ["nvidia-dkms-open", "libnvidia-compute", "nvidia-persistenced"],
    ),
    "nvidia, ubuntu, a branch": (
        {
            **{"name": "ubuntu", "source": "nvidia", "offered": NVIDIA, "state": THERE},
            **{"devices": (T4,), "branch": "580"},
        },
        [
            *("nvidia-driver-pinning-580", "nvidia-dkms-580-open", "libnvidia-compute-580"),
            *("nvidia-utils-580", "nvidia-compute-utils-580"),
        ],
    ),
}


@pytest.mark.parametrize(("given", "expected"), CHOICES.values(), ids=CHOICES)
def test_packages(given: dict[str, Any], expected: list[str]) -> None:
    assert decide(**given).value("choice") == expected


@pytest.mark.parametrize(
    ("device", "branch", "stream", "kernel"),
    [
        (H100, "", "open-dkms", "kmod-nvidia-open-dkms"),
        (T4, "580", "580-open", "kmod-nvidia-open-dkms"),
        (P100, "", "580-dkms", "kmod-nvidia-latest-dkms"),
    ],
)
def test_red_hat(device: str, branch: str, stream: str, kernel: str) -> None:
    headers = [f"kernel-devel-{EL9}", "kernel-devel"]
    made = decide("rocky", (device,), dict.fromkeys(headers, "1"), branch=branch)
    assert made.value("stream") == stream
    rest = ["nvidia-driver-cuda", "nvidia-persistenced"]
    assert made.value("choice") == [*headers, kernel, *rest]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"minimum": "570.26"}, "driver 535.261.03; TensorFlow needs 570.26"),
    ({"minimum": "new"}, "nvidia_driver_minimum is new"),
    ({"branch": "x"}, "nvidia_driver_branch is x; it should be a number"),
    ({"devices": (B200,)}, "the GPU 10de:2901 needs 570 or newer.*nvidia_driver_source to nvidia"),
    ({"devices": (P100,), "flavour": "open"}, "older than Turing.*flavour to proprietary"),
    ({"devices": (B200,), "flavour": "proprietary", "source": "nvidia"}, "flavour to open"),
    ({"devices": (P100, B200), "source": "nvidia"}, "No one driver drives all GPUs"),
    ({"branch": "550"}, "leave nvidia_driver_branch empty"),
    ({"devices": (P100,), "source": "nvidia", "branch": "590"}, "branch to 580"),
    ({"source": "nvidia"}, "NVIDIA repository offers no nvidia-kernel-open-dkms"),
    ({"name": "rocky", "source": "distribution"}, "Rocky has no NVIDIA driver of its own"),
    (
        {"name": "ubuntu", "devices": (P100,), "branch": "550", "offered": branches("535-server")},
        "nvidia-headless-no-dkms-550-server",
    ),
    ({"state": {"uninstaller": True}}, "nvidia-uninstall --silent"),
    ({"name": f"Debian 11 Debian {KERNEL}"}, "installs no driver on Debian 11"),
    ({"name": f"Rocky 10.0 RedHat {EL9}"}, "installs no driver on Rocky 10.0"),
    ({"name": f"Fedora 43 RedHat {EL9}"}, "installs no driver on Fedora 43"),
    ({"machine": "aarch64"}, r"installs no driver on Debian 12 \(aarch64\)"),
    ({"state": {"secure_boot": True}}, "Secure Boot is on.*nvidia_driver_secure_boot to allow"),
    *(
        ({"kernel": kernel}, f"no {re.escape(f'linux-headers-{kernel}')}.*linux-image-amd64")
        for kernel in ("6.1.0-9-amd64", "6.12.94+deb13-cloud-amd64", "6.18.44-custom")
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSALS)
def test_what_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        decide(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"state": {"secure_boot": True, "enrolled": True}},
        {"state": {"secure_boot": True}, "secure_boot": "allow"},
        {
            **{"name": "ubuntu", "state": {"secure_boot": True}},
            "offered": branches("570-server-open", signed=("570-server-open",)),
        },
    ],
)
def test_secure_boot_loads_what_it_knows(given: dict[str, Any]) -> None:
    assert decide(**given).value("choice")


@pytest.mark.parametrize(
    ("kernel", "flavour"),
    [
        ("6.1.0-50-cloud-amd64", "cloud-amd64"),
        ("6.12.94+deb13-amd64", "amd64"),
        ("6.8.0-1044-azure-fde", "azure-fde"),
    ],
)
def test_the_flavour_of_a_kernel(kernel: str, flavour: str) -> None:
    wanted = [f"linux-headers-{kernel}", f"linux-headers-{flavour}"]
    made = decide(kernel=kernel, offered={**BOOKWORM, **dict.fromkeys(wanted, "1")})
    assert made.value("choice")[:2] == wanted
