"""What a host is: its distribution, its kernel, what keeps a driver from being loaded."""

from __future__ import annotations

import glob
import os
import platform
import re
import shlex
from typing import Any, Dict, Optional

from .installed import dpkg_status
from .system import Host, run

#: What NVIDIA's driver is called on the disk; the last two are Debian's names.
MODULES = ("nvidia", "nvidia-current", "nvidia-current-open")
#: The public half of the key that DKMS signs with: Debian and Red Hat, Ubuntu.
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
SUPPORTED = {
    "debian": ("12", "13"),
    "ubuntu": ("22.04", "24.04"),
    "rocky": ("9",),
    "rhel": ("9",),
    "almalinux": ("9",),
}


def os_release(host: Host) -> Dict[str, str]:
    """Return the variables of ``os-release``."""
    values = {}
    for line in (host.read("etc/os-release") or "").splitlines():
        name, found, value = line.strip().partition("=")
        if found and not name.startswith("#"):
            values[name] = "".join(shlex.split(value))
    return values


def is_container(host: Host) -> bool:
    """Whether the host shares its kernel with the machine that it runs on."""
    marks = ("run/systemd/container", ".dockerenv", "run/.containerenv")
    if any(os.path.exists(host.path(mark)) for mark in marks):
        return True
    environment = host.read("proc/1/environ") or ""
    return any(entry.startswith("container=") for entry in environment.split("\0"))


def module_version(host: Host, kernel: str) -> Optional[str]:
    """Return the version of the NVIDIA module that lies on the disk for a kernel."""
    for name in MODULES:
        answer = run("modinfo", "--basedir", host.root, "-k", kernel, "-F", "version", name)
        if answer.status == 0 and re.fullmatch(r"\d+\.\d+(\.\d+)?", answer.output):
            return answer.output
    return None


def secure_boot(host: Host) -> Dict[str, bool]:
    """Return whether the firmware checks signatures, and whether it knows the key of DKMS."""
    enabled = enrolled = False
    for path in glob.glob(host.path("sys/firmware/efi/efivars/SecureBoot-*")):
        with open(path, "rb") as stream:
            # four bytes of attributes, then the value
            enabled = stream.read()[4:5] == b"\x01"
    if enabled:
        for key in SIGNING_KEYS:
            if os.path.exists(host.path(key)):
                answer = run("mokutil", "--test-key", host.path(key))
                enrolled = enrolled or "already enrolled" in answer.output
    return {"enabled": enabled, "enrolled": enrolled}


def module_stream(host: Host) -> str:
    """Return the stream of the dnf module nvidia-driver that is enabled; empty for none."""
    text = host.read("etc/dnf/modules.d/nvidia-driver.module") or ""
    values = dict(line.partition("=")[::2] for line in text.replace(" ", "").splitlines())
    return values.get("stream", "") if values.get("state") == "enabled" else ""


def is_blacklisted(host: Host, blacklist: str, kernel: str) -> bool:
    """Whether nouveau is kept out, also by the initial RAM disk, which has a copy of the file."""
    try:
        written = os.stat(host.path(blacklist)).st_mtime
    except OSError:
        return False
    for name in ("boot/initrd.img-%s", "boot/initramfs-%s.img"):
        try:
            return os.stat(host.path(name % kernel)).st_mtime >= written
        except OSError:
            continue
    return True


def describe(host: Host, blacklist: str) -> Dict[str, Any]:
    """Return what the choice of packages depends on."""
    release = os_release(host)
    kernel = os.uname().release
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    family = "debian" if "debian" in names else "redhat" if "rhel" in names else names[0]
    return {
        "family": family,
        "distribution": release.get("ID", ""),
        "release": release.get("VERSION_ID", ""),
        "codename": release.get("VERSION_CODENAME", ""),
        "machine": platform.machine(),
        "kernel": kernel,
        "headers": os.path.isdir(host.path("lib/modules", kernel, "build")),
        "container": is_container(host),
        "module_version": module_version(host, kernel),
        "nouveau": os.path.isdir(host.path("sys/module/nouveau")),
        "blacklisted": is_blacklisted(host, blacklist, kernel),
        "secure_boot": secure_boot(host),
        "interrupted": family == "debian" and dpkg_status(host)[1],
        "epel": bool(glob.glob(host.path("etc/yum.repos.d/epel*.repo"))),
        "module_stream": module_stream(host),
    }


def supported(about: Dict[str, Any]) -> bool:
    """Whether the role knows how to install a driver here."""
    releases = SUPPORTED.get(about["distribution"], ())
    release = about["release"]
    if about["family"] == "redhat":
        release = release.split(".")[0]
    return release in releases and about["machine"] == "x86_64"


def unsupported(about: Dict[str, Any]) -> str:
    """Return what an operator is told where the role knows no way."""
    return (
        "The role installs no driver on %s %s (%s); it knows Debian 12 and 13, Ubuntu 22.04 and"
        " 24.04, RHEL, Rocky and Alma Linux 9, on x86_64. Install one by hand, then run again."
        % (about["distribution"], about["release"], about["machine"])
    )
