#!/usr/bin/python
"""Ansible module: a host's NVIDIA GPUs, their driver, and obstacles to loading one.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_driver_info
short_description: Return the NVIDIA GPUs of a host and the state of their driver
description:
  - Reads the kernel's PCI listing, so it needs neither a driver nor C(lspci). GPUs that are passed
    to virtual machines (C(vfio-pci)) and virtual functions are ignored.
  - Changes nothing, and does not need root.
options:
  pci_root:
    description: The kernel's listing of PCI devices.
    type: path
    default: /sys/bus/pci/devices
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Check the GPUs and their driver
  tensorflow_ansible.cluster.nvidia_driver_info:
  register: nvidia_driver_facts
"""

RETURN = r"""
gpus:
  description:
    - Each has C(pci), C(device_id) and C(kernel_driver), and, if nvidia-smi shows it, C(index),
      C(uuid), C(name), C(memory_mib), C(compute_capability) and C(mig).
  type: list
  elements: dict
  returned: success
driver:
  description: C(version) and C(open) (kernel module) of the loaded driver, null if none is loaded.
  type: dict
  returned: success
topology:
  description: The lines of C(nvidia-smi topo -m), null if it does not work.
  type: list
  elements: str
  returned: if there is a GPU
smi:
  description:
    - Whether nvidia-smi is C(installed); its C(error) with the loaded driver, null if there is
      none; and C(persistence), whether persistence mode is on for all GPUs, null if unknown.
  type: dict
  returned: if there is a GPU
host:
  description:
    - C(module_version), the version of the driver's module on disk for the running kernel, null if
      there is none. The other keys are booleans. The running kernel's C(headers) exist, C(nouveau)
      is loaded, the C(uninstaller) of NVIDIA's .run file exists, dpkg was C(interrupted),
      C(secure_boot) is on, DKMS's signing key is C(enrolled), and the host is a C(container).
  type: dict
  returned: if there is a GPU
"""

import glob
import os
import platform
import re
import shutil
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

#: Root of all paths except the PCI listing; tests use a folder.
ROOT = "/"
#: Names of the driver's module on disk; the last two are Debian's.
MODULES = ("nvidia", "nvidia-current", "nvidia-current-open")
#: The public part of DKMS's signing key: Debian and Red Hat, Ubuntu.
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
#: Properties of nvidia-smi, and their names in the result.
FIELDS = {
    "pci.bus_id": "pci",
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "memory.total": "memory_mib",
    "compute_cap": "compute_capability",
    "mig.mode.current": "mig",
    "persistence_mode": "persistence",
}


def path(*parts: str) -> str:
    """Return the path of a file below ROOT; absolute parts are kept."""
    return os.path.join(ROOT, *parts)


def read(*parts: str) -> str:
    """Return a file's text, or an empty string if it cannot be read."""
    try:
        with open(path(*parts), encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def run(module: AnsibleModule, *command: str) -> Tuple[int, str]:
    """Run a program for up to two minutes: nvidia-smi takes seconds to initialize each GPU."""
    status, output, error = module.run_command(["timeout", "120", *command])
    return status, (output + error).strip() or "%s ended with status %d" % (command[0], status)


def pci_gpus(pci_root: str) -> List[Dict[str, Any]]:
    """Return the NVIDIA GPUs in a PCI listing that this host itself can use."""
    gpus = []
    for folder in sorted(glob.glob(os.path.join(pci_root, "*"))):
        link = os.path.join(folder, "driver")
        driver = os.path.basename(os.readlink(link)) if os.path.islink(link) else None
        is_gpu = read(folder, "vendor") == "0x10de" and read(folder, "class").startswith("0x03")
        if is_gpu and driver != "vfio-pci" and not os.path.lexists(os.path.join(folder, "physfn")):
            gpus.append(
                {
                    "pci": os.path.basename(folder).lower(),
                    "device_id": read(folder, "device")[2:].lower(),
                    "kernel_driver": driver,
                }
            )
    return gpus


def parse_query(output: str) -> Dict[str, Dict[str, Any]]:
    """Return the GPUs in the output of ``nvidia-smi --query-gpu`` by PCI address, as in sysfs."""
    gpus = {}
    for line in output.splitlines():
        values = [value.strip() for value in line.split(", ")]
        if len(values) != len(FIELDS):
            continue
        # "[N/A]", "[Not Supported]"; some fields and versions omit the brackets
        known = [None if value.startswith("[") or value == "N/A" else value for value in values]
        gpu: Dict[str, Any] = {name: known[i] for i, name in enumerate(FIELDS.values())}
        for name in ("index", "memory_mib"):
            gpu[name] = None if gpu[name] is None else int(gpu[name])
        for name in ("mig", "persistence"):
            gpu[name] = None if gpu[name] is None else gpu[name] == "Enabled"
        domain, _, rest = gpu.pop("pci").lower().partition(":")
        gpus["%04x:%s" % (int(domain, 16), rest)] = gpu
    return gpus


def loaded_driver() -> Optional[Dict[str, Any]]:
    """Return the version and kind of the NVIDIA driver in the kernel, or None if none is loaded."""
    line = read("proc/driver/nvidia/version").partition("\n")[0]
    found = re.search(r"^NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)(\s|$)", line)
    return {"version": found.group(1), "open": "Open Kernel" in line} if found else None


def module_version(module: AnsibleModule) -> Optional[str]:
    """Return the version of the driver's kernel module on disk, or None if there is none."""
    for name in MODULES:
        status, output = run(module, "modinfo", "-F", "version", name)
        if status == 0 and re.fullmatch(r"[0-9]+\.[0-9]+(\.[0-9]+)?", output):
            return output
    return None


def secure_boot(module: AnsibleModule) -> Tuple[bool, bool]:
    """Return whether the firmware checks signatures, and whether it trusts the key of DKMS."""
    enabled = enrolled = False
    for variable in glob.glob(path("sys/firmware/efi/efivars/SecureBoot-*")):
        with open(variable, "rb") as stream:
            enabled = stream.read()[4:5] == b"\x01"  # preceded by four bytes of attributes
    for key in SIGNING_KEYS:
        if enabled and os.path.exists(path(key)):
            answer = run(module, "mokutil", "--test-key", path(key))[1]
            enrolled = enrolled or "already enrolled" in answer
    return enabled, enrolled


def is_container() -> bool:
    """Return whether the host is a container, which shares the kernel of its machine."""
    marks = ("run/systemd/container", ".dockerenv", "run/.containerenv")
    environment = "\0" + read("proc/1/environ")
    return any(os.path.exists(path(mark)) for mark in marks) or "\0container=" in environment


def dpkg_interrupted() -> bool:
    """Return whether dpkg was interrupted."""
    half = r"^Status: .* (?!installed$|config-files$|not-installed$)\S+$"
    status = re.search(half, read("var/lib/dpkg/status"), re.MULTILINE)
    return bool(status or glob.glob(path("var/lib/dpkg/updates/*")))


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={"pci_root": {"type": "path", "default": "/sys/bus/pci/devices"}},
        supports_check_mode=True,
    )
    # A login user's path lacks the folders of root's programs.
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/bin"
    gpus = pci_gpus(module.params["pci_root"])
    if not gpus:
        module.exit_json(gpus=[], driver=None)
    driver = loaded_driver()
    error = topology = None
    modes = []
    if driver:
        query = ("--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
        status, output = run(module, "nvidia-smi", *query)
        shown = {} if status else parse_query(output)
        for gpu in gpus:
            gpu.update(shown.get(gpu["pci"], {}))
            modes.append(gpu.pop("persistence", None))
        error = output if status else None if shown else "nvidia-smi shows no GPU"
        status, output = run(module, "nvidia-smi", "topo", "-m")
        if status == 0:  # contains terminal codes, even in a pipe
            topology = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    enabled, enrolled = secure_boot(module)
    module.exit_json(
        gpus=gpus,
        driver=driver,
        topology=topology,
        smi={
            "installed": shutil.which("nvidia-smi") is not None,
            "error": error,
            "persistence": False if False in modes else True if True in modes else None,
        },
        host={
            "module_version": module_version(module),
            "headers": os.path.isdir(path("lib/modules", platform.release(), "build")),
            "nouveau": os.path.isdir(path("sys/module/nouveau"))
            or "nouveau" in [gpu["kernel_driver"] for gpu in gpus],
            "uninstaller": os.path.exists(path("usr/bin/nvidia-uninstall")),
            "interrupted": dpkg_interrupted(),
            "secure_boot": enabled,
            "enrolled": enrolled,
            "container": is_container(),
        },
    )


if __name__ == "__main__":
    main()
