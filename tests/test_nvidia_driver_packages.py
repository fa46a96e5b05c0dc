"""Which packages the role ``nvidia_driver`` chooses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.nvidia_role import B200, H100, KERNEL, MINIMUM, P100, T4, part

choosing = part("choice")
fit = part("fit")

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
    wanted = fit.Wanted(minimum, source, flavour, branch)
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
    with pytest.raises(fit.PackageError, match=message):
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
    with pytest.raises(fit.PackageError, match=message):
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
    with pytest.raises(fit.PackageError, match="nvidia-headless-no-dkms-550-server"):
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
    policy = part("package_lists").parse_policy(
        "nvidia-smi:\n  Installed: (none)\n  Candidate: 535.261.03-1\n  Version table:\n"
        "     535.261.03-1 500\n        500 http://mirror bookworm/non-free amd64 Packages\n"
        "nvidia-tesla:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
    )
    assert policy == {
        "nvidia-smi": ("(none)", "535.261.03-1"),
        "nvidia-tesla": ("(none)", "(none)"),
    }
    assert part("versions").upstream("3:570.86.15-0ubuntu1") == "570.86.15"
