"""Which packages the role ``nvidia_driver`` chooses, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.nvidia_role import B200, H100, KERNEL, P100, T4, Decision, RefusalError

UBUNTU, EL9 = "5.15.0-119-generic", "5.14.0-570.12.1.el9_6.x86_64"
HEADERS = f"linux-headers-{KERNEL} linux-headers-amd64"
REST = "libcuda1 nvidia-smi nvidia-persistenced"
BOOKWORM = dict.fromkeys([*HEADERS.split(), "nvidia-kernel-dkms"], "535.261.03-1")
THERE = {"headers": True}
BARE = {
    **{"module_version": None, "headers": False, "nouveau": False, "uninstaller": False},
    **{"interrupted": False, "secure_boot": False, "enrolled": False, "container": False},
}


def decide(case: Any) -> Decision:
    """Decide on a host: what differs from a bare one with Debian 12, and the GPUs' device ids."""
    differing, *devices = case if isinstance(case, tuple) else (case,)
    given = {"system": f"Debian 12 Debian {KERNEL}", "machine": "x86_64", "state": {}, **differing}
    lists = given.pop("offered", BOOKWORM)
    name, release, family, kernel = given.pop("system").split()
    host = {"distribution": name, "distribution_version": release, "os_family": family}
    host |= {"distribution_major_version": release.split(".")[0], "kernel": kernel}
    host["architecture"] = given.pop("machine")
    facts = {
        "gpus": [{"device_id": device} for device in devices or [H100]],
        **{"driver": None, "smi": {"installed": False, "error": None}},
        "host": {**BARE, **given.pop("state")},
    }
    made = Decision(facts, host, lists, **{f"nvidia_driver_{key}": given[key] for key in given})
    made.follow({"block": made.file("tasks/preflight.yml") + made.file("tasks/choose.yml")})
    return made


def ubuntu(*branches: str, signed: str = "", **given: Any) -> dict[str, Any]:
    """A case with some branches in Ubuntu's lists, such as ``570-server-open``."""
    names = f"linux-headers-{UBUNTU}"
    for branch in branches:
        names += f" nvidia-headless-no-dkms-{branch} nvidia-dkms-{branch}"
        names += f" nvidia-utils-{branch.split('-')[0]}-server"
    for branch in signed.split():
        modules = f" linux-modules-nvidia-{branch}-"
        names += f"{modules}{UBUNTU}{modules}generic"
    known = dict.fromkeys(names.split(), "1:570.1-0ubuntu1")
    return {"system": f"Ubuntu 22.04 Debian {UBUNTU}", "offered": known, **given}


def nvidia(system: str = f"Debian 13 Debian {KERNEL}", **given: Any) -> dict[str, Any]:
    """A case with NVIDIA's repository."""
    newest = "nvidia-kernel-open-dkms nvidia-kernel-dkms nvidia-driver-cuda nvidia-dkms-open"
    newest += " libnvidia-compute nvidia-persistenced"
    locked = "nvidia-driver-pinning-580 nvidia-dkms-580-open libnvidia-compute-580"
    locked += " nvidia-utils-580 nvidia-compute-utils-580"
    known = {**dict.fromkeys(newest.split(), "610.4-1"), **dict.fromkeys(locked.split(), "580.9-1")}
    return {"system": system, "offered": known, "source": "nvidia", "state": THERE, **given}


def el9(*devices: str, **given: Any) -> tuple[Any, ...]:
    offered = {f"kernel-devel-{EL9}": "1"}
    return {"system": f"Rocky 9.6 RedHat {EL9}", "offered": offered, **given}, *devices


UBUNTU_570 = "570-server-open"
DEVEL, REST_EL9 = f"kernel-devel-{EL9} kernel-devel", "nvidia-driver-cuda nvidia-persistenced"
CASES: list[tuple[Any, str]] = [
    ({}, f"{HEADERS} nvidia-kernel-dkms {REST}"),
    ({"flavour": "open"}, f"{HEADERS} nvidia-open-kernel-dkms {REST}"),
    (
        {"offered": dict.fromkeys(BOOKWORM, "3:570.86-1"), "state": THERE},  # NVIDIA advises open
        f"linux-headers-amd64 nvidia-open-kernel-dkms {REST}",
    ),
    ({"state": THERE}, f"linux-headers-amd64 nvidia-kernel-dkms {REST}"),
    ({"state": {"container": True}}, f"nvidia-kernel-dkms {REST}"),
    ({"packages": ["nvidia-smi"], "offered": {}}, "nvidia-smi"),
    (  # modules that Ubuntu has signed win over a newer branch
        ubuntu("535-server", UBUNTU_570, "580-server-open", signed=f"535-server {UBUNTU_570}"),
        f"linux-modules-nvidia-{UBUNTU_570}-{UBUNTU} nvidia-headless-no-dkms-{UBUNTU_570}"
        f" nvidia-utils-570-server linux-modules-nvidia-{UBUNTU_570}-generic",
    ),
    (
        ubuntu("470-server", "535-server", "580-server-open"),
        f"linux-headers-{UBUNTU} nvidia-dkms-580-server-open"
        " nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server",
    ),
    (
        (ubuntu("580-server", "580-server-open", "590-server", signed="590-server"), P100),
        f"linux-headers-{UBUNTU} nvidia-dkms-580-server"
        " nvidia-headless-no-dkms-580-server nvidia-utils-580-server",
    ),
    (nvidia(), "nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-persistenced"),
    (
        (nvidia(), P100),
        "nvidia-driver-pinning-580 nvidia-kernel-dkms nvidia-driver-cuda nvidia-persistenced",
    ),
    (
        nvidia(f"Ubuntu 24.04 Debian {UBUNTU}"),
        "nvidia-dkms-open libnvidia-compute nvidia-persistenced",
    ),
    (
        (nvidia(f"Ubuntu 24.04 Debian {UBUNTU}", branch="580"), T4),
        "nvidia-driver-pinning-580 nvidia-dkms-580-open libnvidia-compute-580 nvidia-utils-580"
        " nvidia-compute-utils-580",
    ),
    (el9(H100), f"open-dkms {DEVEL} kmod-nvidia-open-dkms {REST_EL9}"),
    (el9(T4, branch="580"), f"580-open {DEVEL} kmod-nvidia-open-dkms {REST_EL9}"),
    (el9(P100), f"580-dkms {DEVEL} kmod-nvidia-latest-dkms {REST_EL9}"),
]


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_packages(case: Any, expected: str) -> None:
    made = decide(case)
    stream = [made.value("stream")] if DEVEL in expected else []
    assert stream + made.value("choice") == expected.split()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"minimum": "570.26"}, "driver 535.261.03; TensorFlow needs 570.26"),
        ({"minimum": "new"}, "nvidia_driver_minimum is new"),
        ({"branch": "x"}, "nvidia_driver_branch is x; it should be a number"),
        (({}, B200), "the GPU 10de:2901 needs 570 or newer.*nvidia_driver_source to nvidia"),
        (({"flavour": "open"}, P100), "older than Turing.*flavour to proprietary"),
        ((nvidia(flavour="proprietary"), B200), "flavour to open"),
        ((nvidia(), P100, B200), "No one driver drives all GPUs"),
        ({"branch": "550"}, "leave nvidia_driver_branch empty"),
        ((nvidia(branch="590"), P100), "branch to 580"),
        (nvidia(offered={}), "NVIDIA repository offers no nvidia-kernel-open-dkms"),
        (el9(H100, source="distribution"), "Rocky has no NVIDIA driver of its own"),
        ((ubuntu("535-server", branch="550"), P100), "nvidia-headless-no-dkms-550-server"),
        ({"state": {"uninstaller": True}}, "nvidia-uninstall --silent"),
        ({"system": f"Debian 11 Debian {KERNEL}"}, "installs no driver on Debian 11"),
        ({"system": f"Rocky 10.0 RedHat {EL9}"}, "installs no driver on Rocky 10.0"),
        ({"system": f"Fedora 43 RedHat {EL9}"}, "installs no driver on Fedora 43"),
        ({"machine": "aarch64"}, r"installs no driver on Debian 12 \(aarch64\)"),
        ({"state": {"secure_boot": True}}, "Secure Boot is on.*nvidia_driver_secure_boot to allow"),
        *(
            (
                {"system": f"Debian 13 Debian {kernel}"},
                rf"no linux-headers-{re.escape(kernel)}, .*linux-image-amd64 linux-headers-amd64",
            )
            for kernel in ("6.1.0-9-amd64", "6.12.94+deb13-cloud-amd64", "6.18.44-custom")
        ),
    ],
)
def test_what_cannot_work_is_refused(case: Any, message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        decide(case)


@pytest.mark.parametrize(
    "case",
    [
        {"state": {"secure_boot": True, "enrolled": True}},
        {"state": {"secure_boot": True}, "secure_boot": "allow"},
        ubuntu(UBUNTU_570, signed=UBUNTU_570, state={"secure_boot": True}),
    ],
)
def test_secure_boot_loads_what_it_knows(case: Any) -> None:
    assert decide(case).value("choice")


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
    offered = {**BOOKWORM, **dict.fromkeys(wanted, "1")}
    made = decide({"system": f"Debian 12 Debian {kernel}", "offered": offered})
    assert made.value("choice")[:2] == wanted
