"""The choice of packages, the distribution's or NVIDIA's, with the kernel's headers."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from .fit import (
    LAST_BEFORE_TURING,
    TURING,
    Candidates,
    Choice,
    PackageError,
    Wanted,
    check_version,
    device_ids,
    is_open,
    none_offered,
)
from .versions import kernel_flavour, numbers, upstream

#: The first branch of NVIDIA's own packages for Ubuntu without the branch in their names.
FIRST_UNNUMBERED = 590


def choose_debian(wanted: Wanted, devices: List[int], ask: Candidates) -> Choice:
    """Choose among Debian's own packages."""
    if wanted.branch:
        raise PackageError(
            "Debian has one driver branch: leave nvidia_driver_branch empty, or set"
            " nvidia_driver_source to nvidia."
        )
    found = ask(["nvidia-kernel-dkms", "nvidia-open-kernel-dkms"])
    if "nvidia-kernel-dkms" not in found:
        raise none_offered(wanted, "nvidia-kernel-dkms")
    version = upstream(found["nvidia-kernel-dkms"])
    check_version(wanted, devices, version)
    kernel = "nvidia-kernel-dkms"
    if is_open(wanted, devices, numbers(version)[0]):
        kernel = "nvidia-open-kernel-dkms"
    return Choice([kernel, "libcuda1", "nvidia-smi", "nvidia-persistenced"], version, True)


def choose_ubuntu(
    wanted: Wanted,
    devices: List[int],
    ask: Candidates,
    names: Callable[[str], List[str]],
    kernel: str,
) -> Choice:
    """Choose among Ubuntu's server branches.

    Modules that Ubuntu has compiled and signed for the running kernel win over ones that the host
    would build itself; then the newest branch wins.
    """
    prefix = "nvidia-headless-no-dkms-"
    branches = sorted(
        {
            int(found.group(1))
            for name in names(prefix)
            for found in [re.fullmatch(prefix + r"(\d+)-server(-open)?", name)]
            if found
        },
        reverse=True,
    )
    if wanted.branch:
        branches = [branch for branch in branches if str(branch) == wanted.branch]
    fitting: List[Tuple[bool, int, Choice]] = []
    refusal: Optional[PackageError] = None
    for branch in branches:
        try:
            opened = is_open(wanted, devices, branch)
            suffix = "%d-server%s" % (branch, "-open" if opened else "")
            modules = "linux-modules-nvidia-%s-%s" % (suffix, kernel)
            dkms = "nvidia-dkms-%s" % suffix
            rest = [prefix + suffix, "nvidia-utils-%d-server" % branch]
            found = ask([modules, dkms, *rest])
            if not all(name in found for name in rest):
                continue
            version = upstream(found[rest[0]])
            check_version(wanted, devices, version)
        except PackageError as error:
            refusal = refusal or error
            continue
        if modules in found:
            metas = ["linux-modules-nvidia-%s-%s" % (suffix, kernel_flavour(kernel))]
            following = [name for name in metas if name in ask(metas)]
            fitting.append((True, branch, Choice([modules, *following, *rest], version, False)))
        elif dkms in found:
            fitting.append((False, branch, Choice([dkms, *rest], version, True)))
    if fitting:
        return max(fitting, key=lambda entry: entry[:2])[2]
    raise refusal or none_offered(wanted, prefix + (wanted.branch or "NNN") + "-server")


def nvidia_branch(wanted: Wanted, devices: List[int]) -> str:
    """Return the branch to lock; empty for the newest.

    Raises:
        PackageError: the one that was asked for does not drive these GPUs.
    """
    branch = wanted.branch
    if not branch and any(device < TURING for device in devices):
        branch = str(LAST_BEFORE_TURING)
    if branch:
        # the newest release of the branch
        check_version(wanted, devices, "%s.999" % branch)
    return branch


def choose_nvidia_apt(
    wanted: Wanted, devices: List[int], ask: Candidates, distribution: str
) -> Choice:
    """Choose among the packages of NVIDIA's repository for Debian and Ubuntu."""
    branch = nvidia_branch(wanted, devices)
    opened = is_open(wanted, devices, int(branch) if branch else FIRST_UNNUMBERED)
    numbered = distribution == "ubuntu" and branch and int(branch) < FIRST_UNNUMBERED
    if numbered:
        packages = [
            "nvidia-dkms-%s%s" % (branch, "-open" if opened else ""),
            "libnvidia-compute-%s" % branch,
            "nvidia-utils-%s" % branch,
            "nvidia-compute-utils-%s" % branch,
        ]
    elif distribution == "ubuntu":
        packages = ["nvidia-dkms-open" if opened else "nvidia-dkms", "libnvidia-compute"]
    else:
        packages = ["nvidia-kernel-open-dkms" if opened else "nvidia-kernel-dkms"]
        packages += ["nvidia-driver-cuda"]
    # Where the daemon and nvidia-smi are packages of their own differs from branch to branch.
    extra = [] if numbered else ["nvidia-persistenced", "nvidia-smi"]
    pin = ["nvidia-driver-pinning-%s" % branch] if branch else []
    found = ask([*packages, *extra, *pin])
    lacking = [name for name in [*packages, *pin] if name not in found]
    if lacking:
        raise none_offered(wanted, ", ".join(lacking))
    # Before the pin is installed, the lists name the newest branch's version.
    version = branch or upstream(found[packages[0]])
    if not branch:
        check_version(wanted, devices, version)
    return Choice(pin + packages + [name for name in extra if name in found], version, True)


def choose_nvidia_dnf(wanted: Wanted, devices: List[int]) -> Choice:
    """Choose stream and packages of NVIDIA's repository for Red Hat's family."""
    branch = nvidia_branch(wanted, devices)
    opened = is_open(wanted, devices, int(branch) if branch else FIRST_UNNUMBERED)
    stream = "open-dkms" if opened else "latest-dkms"
    if branch:
        stream = branch + ("-open" if opened else "-dkms")
    kernel = "kmod-nvidia-open-dkms" if opened else "kmod-nvidia-latest-dkms"
    packages = [kernel, "nvidia-driver-cuda", "nvidia-persistenced"]
    return Choice(packages, branch, True, stream)


def headers(host: Dict[str, Any], ask: Candidates) -> List[str]:
    """Return the packages with the headers of the running kernel, and of the kernels to come.

    Raises:
        PackageError: the archive has none for the running one.
    """
    if host["family"] == "redhat":
        wanted = "kernel-devel-%s" % host["kernel"]
        following = "kernel-devel"
    else:
        wanted = "linux-headers-%s" % host["kernel"]
        following = "linux-headers-%s" % kernel_flavour(host["kernel"])
    found = ask([wanted, following])
    if host["headers"]:
        return [following] if following in found else []
    if wanted not in found:
        usual = "linux-headers-%s" % ("generic" if host["distribution"] == "ubuntu" else "amd64")
        newest = following if following in found else usual
        remedy = "apt-get install %s %s" % (newest.replace("headers", "image"), newest)
        if host["family"] == "redhat":
            remedy = "dnf install kernel kernel-devel"
        raise PackageError(
            "The archive has no %s, which the driver needs to build its module for the running"
            " kernel: it is older than the archive's, or not the distribution's. Bring the newest"
            " kernel (`%s`), reboot, and run again." % (wanted, remedy)
        )
    return [name for name in (wanted, following) if name in found]


def choose(
    host: Dict[str, Any],
    gpus: List[Dict[str, Any]],
    wanted: Wanted,
    ask: Candidates,
    names: Callable[[str], List[str]],
) -> Choice:
    """Return what to install.

    Raises:
        PackageError: nothing fits.
    """
    devices = device_ids(gpus)
    if host["family"] == "redhat":
        if wanted.source == "distribution":
            raise PackageError(
                "%s has no NVIDIA driver of its own. Set nvidia_driver_source to nvidia."
                % host["distribution"]
            )
        choice = choose_nvidia_dnf(wanted, devices)
    elif wanted.source == "nvidia":
        choice = choose_nvidia_apt(wanted, devices, ask, host["distribution"])
    elif host["distribution"] == "ubuntu":
        choice = choose_ubuntu(wanted, devices, ask, names, host["kernel"])
    else:
        choice = choose_debian(wanted, devices, ask)
    # A container has the machine's kernel, whose headers are the machine's affair.
    if not choice.built or host["container"]:
        return choice
    # First the headers: DKMS builds at once for a kernel whose headers are there.
    return choice._replace(packages=headers(host, ask) + choice.packages)
