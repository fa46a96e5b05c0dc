#!/usr/bin/python
"""Ansible module: tells in one call what GPUs a host has, whether their driver is good, what to do.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_look
short_description: Tell what NVIDIA GPUs a host has and whether their driver is good
description:
  - Finds NVIDIA GPUs in the PCI listing of the kernel, so without a driver and without C(lspci).
  - Where there are some, looks at the driver that is loaded, at C(nvidia-smi), at the kernel module
    on the disk, at nouveau, Secure Boot, the kernel's headers, the persistence daemon and the fact
    file, and says what is left to do. Changes nothing.
  - A driver that is loaded, new enough and answers C(nvidia-smi) is good, wherever it came from.
options:
  minimum:
    description: The oldest driver that will do, such as V(525.60.13).
    type: str
    required: true
  pci_root:
    description: The kernel's listing of PCI devices.
    type: path
    default: /sys/bus/pci/devices
  persistence:
    description: Whether the persistence daemon has to run.
    type: bool
    default: true
  in_container:
    description:
      - What is wanted in a container, which cannot load a kernel module. V(leave) wants nothing
        there, V(packages) wants what can be installed.
    type: str
    choices: [leave, packages]
    default: leave
  packages:
    description: Packages that are wanted in a container.
    type: list
    elements: str
    default: []
  fact_path:
    description: The local fact of Ansible that tells of the GPUs.
    type: path
    default: /etc/ansible/facts.d/nvidia.fact
  blacklist_path:
    description: The file of modprobe that keeps nouveau from being loaded.
    type: path
    default: /etc/modprobe.d/nvidia-driver-nouveau.conf
  root:
    description: Folder that stands for C(/), for tests.
    type: path
    default: /
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the GPUs and their driver
  nvidia_look:
    minimum: 525.60.13
  register: nvidia_driver_facts

- name: Install the driver
  ansible.builtin.include_tasks: install.yml
  when: "'install' in nvidia_driver_facts.todo"
"""

RETURN = r"""
ready:
  description: Whether nothing is left to do.
  type: bool
  returned: success
todo:
  description:
    - What is left to do. V(install) the driver's packages, V(blacklist) nouveau, V(load) the
      driver's kernel module, V(reboot) the host, V(enrol) the key that signs the kernel module,
      V(persistence) start the persistence daemon, V(fact) write or remove the fact file.
  type: list
  elements: str
  returned: success
problems:
  description: What a human has to mend first, each with its remedy.
  type: list
  elements: str
  returned: success
notes:
  description: What the host's owner should know, each in one sentence.
  type: list
  elements: str
  returned: success
gpus:
  description:
    - The GPUs, by PCI address. Each has C(pci), C(device_id) and C(kernel_driver), and, where the
      driver answers, C(index), C(uuid), C(name), C(memory_mib), C(compute_capability), C(mig) and
      C(persistence); null where it does not tell.
  type: list
  elements: dict
  returned: success
driver:
  description: C(version) and C(open) of the loaded driver, null where none is loaded.
  type: dict
  returned: success
topology:
  description:
    - How GPUs and network cards hang together, as C(nvidia-smi topo -m) says. C(links), from device
      to device; C(cpu_affinity) and C(numa_affinity) of each GPU; C(nics), the cards' names. Null
      where the driver does not answer.
  type: dict
  returned: success
fact:
  description: What the fact file should hold; empty where it should not be there.
  type: str
  returned: success
host:
  description:
    - What the choice of packages depends on. C(family), C(distribution), C(release), C(codename),
      C(machine), C(kernel), C(headers), C(container), C(module_version), C(nouveau),
      C(blacklisted), C(secure_boot), C(interrupted), C(epel) and C(module_stream).
  type: dict
  returned: success
sources:
  description:
    - For hosts with apt. C(uris), the addresses that are configured; C(archive), where the
      distribution's own archive is, with C(uri), C(suites), C(components) and C(signed_by).
  type: dict
  returned: success
persistence:
  description:
    - The unit of the persistence daemon. C(found), C(active), C(enabled), and C(exec_start), a
      command in place of the unit's own where that one turns persistence mode off.
  type: dict
  returned: success
"""

import glob
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ansible.module_utils.basic import AnsibleModule

NVIDIA = 0x10DE
#: PCI's base class of display controllers: VGA, 3D, other.
DISPLAY = 0x03
#: What nvidia-smi is asked for each GPU, and under which name the module returns it.
FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "pci.bus_id": "pci",
    "name": "name",
    "memory.total": "memory_mib",
    "compute_cap": "compute_capability",
    "mig.mode.current": "mig",
    "persistence_mode": "persistence",
}
#: Longest time that a program may take. nvidia-smi initialises every GPU, seconds each.
PROGRAM_LIMIT_S = 120
PERSISTENCED = "nvidia-persistenced.service"
#: What NVIDIA's driver is called on the disk; the last two are Debian's names.
MODULES = ("nvidia", "nvidia-current", "nvidia-current-open")
#: The public half of the key that DKMS signs with: Debian and Red Hat, Ubuntu.
SIGNING_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
#: How the names of the source files begin that the role writes.
OWN_SOURCES = "nvidia-driver-"
SUPPORTED = {
    "debian": ("12", "13"),
    "ubuntu": ("22.04", "24.04"),
    "rocky": ("9",),
    "rhel": ("9",),
    "almalinux": ("9",),
}


def version_key(text: str) -> Tuple[int, ...]:
    """Return a version such as ``525.60.13`` as numbers, to compare it.

    Raises:
        ValueError: it is no version.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise ValueError("%r is no version such as 525.60.13" % text)
    return tuple(int(part) for part in text.split("."))


def search_path() -> str:
    """Return where programs are; a login user's own path lacks the folders of root's."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


class Answer(NamedTuple):
    """What a program answered; a program that is not there has the status 127."""

    status: int
    output: str


class Host:
    """The host's files and programs, read only.

    Args:
        root: the folder that stands for ``/``.
        pci_root: the kernel's listing of PCI devices.
    """

    def __init__(self, root: str, pci_root: str):
        self.root = root
        self.pci_root = pci_root

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *(part.lstrip("/") for part in parts))

    def read(self, *parts: str) -> Optional[str]:
        """Return a file's text, None where it is not there or may not be read."""
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return None

    def has(self, program: str) -> bool:
        return shutil.which(program, path=search_path()) is not None

    def run(self, *command: str) -> Answer:
        """Run a program of the host and return both its outputs as one."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PROGRAM_LIMIT_S,
                env={"PATH": search_path(), "LC_ALL": "C.UTF-8"},
                check=False,
            )
        except FileNotFoundError:
            return Answer(127, "%s is not installed" % command[0])
        except subprocess.TimeoutExpired:
            return Answer(124, "%s gave no answer within %d s" % (command[0], PROGRAM_LIMIT_S))
        return Answer(done.returncode, done.stdout.decode(errors="replace").strip())


def bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it: four digits of the domain, small letters."""
    domain, _, rest = text.strip().lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest)


def pci_gpus(pci_root: str) -> List[Dict[str, Any]]:
    """Return NVIDIA's display controllers of a PCI listing.

    A virtual function, which belongs to a virtual machine, is left out, and so is a GPU that is
    handed to one (driver ``vfio-pci``).
    """
    gpus = []
    try:
        addresses = sorted(os.listdir(pci_root))
    except OSError:
        return []
    for address in addresses:
        folder = os.path.join(pci_root, address)
        numbers = []
        try:
            for name in ("vendor", "class", "device"):
                with open(os.path.join(folder, name), encoding="ascii") as stream:
                    numbers.append(int(stream.read().strip(), 16))
        except (OSError, ValueError):
            continue
        vendor, kind, device = numbers
        if vendor != NVIDIA or kind >> 16 != DISPLAY:
            continue
        if os.path.exists(os.path.join(folder, "physfn")):
            continue
        link = os.path.join(folder, "driver")
        driver = os.path.basename(os.readlink(link)) if os.path.islink(link) else None
        if driver == "vfio-pci":
            continue
        gpus.append({"pci": address.lower(), "device_id": "%04x" % device, "kernel_driver": driver})
    return gpus


def loaded_driver(host: Host) -> Optional[Dict[str, Any]]:
    """Return version and kind of the NVIDIA driver in the kernel, None where there is none."""
    text = host.read("proc/driver/nvidia/version") or ""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    if not found:
        return None
    return {"version": found.group(1), "open": "Open Kernel Module" in text.splitlines()[0]}


def parse_query(output: str) -> List[Dict[str, Any]]:
    """Return the GPUs of ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``."""
    gpus = []
    for line in output.splitlines():
        values = [value.strip() for value in line.split(", ")]
        if len(values) != len(FIELDS):
            continue
        gpu: Dict[str, Any] = {name: values[place] for place, name in enumerate(FIELDS.values())}
        for name, value in gpu.items():
            # "[N/A]", "[Not Supported]"; without brackets in some fields and versions
            if value.startswith("[") or value in ("N/A", ""):
                gpu[name] = None
        gpu["pci"] = bus_id(gpu["pci"])
        for name in ("index", "memory_mib"):
            gpu[name] = int(gpu[name]) if gpu[name] is not None else None
        for name in ("mig", "persistence"):
            gpu[name] = gpu[name] == "Enabled" if gpu[name] is not None else None
        gpus.append(gpu)
    return gpus


def parse_topology(output: str) -> Dict[str, Any]:
    """Return the matrix of ``nvidia-smi topo -m`` as dictionaries.

    The head is underlined with terminal codes even in a pipe, and empty columns make the tabs after
    the matrix lie: only its square part is read by column.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    devices: List[str] = []
    topology: Dict[str, Any] = {"links": {}, "cpu_affinity": {}, "numa_affinity": {}, "nics": {}}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not devices:
            devices = [cell for cell in cells if re.fullmatch(r"(GPU|NIC)\d+", cell)]
        elif cells[0] in devices:
            links = dict(enumerate(cells[1:]))
            topology["links"][cells[0]] = {
                name: links[place]
                for place, name in enumerate(devices)
                if links.get(place, "") not in ("X", "")
            }
            rest = [cell for cell in cells[1 + len(devices) :] if cell]
            if cells[0].startswith("GPU") and rest:
                topology["cpu_affinity"][cells[0]] = rest[0]
                topology["numa_affinity"][cells[0]] = rest[1] if len(rest) > 1 else None
        else:
            card = re.fullmatch(r"\s*(NIC\d+):\s*(\S+)\s*", line)
            if card:
                topology["nics"][card.group(1)] = card.group(2)
    return topology


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
        answer = host.run("modinfo", "--basedir", host.root, "-k", kernel, "-F", "version", name)
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
                answer = host.run("mokutil", "--test-key", host.path(key))
                enrolled = enrolled or "already enrolled" in answer.output
    return {"enabled": enabled, "enrolled": enrolled}


def dpkg_status(host: Host) -> Tuple[Set[str], bool]:
    """Return what dpkg has installed, and whether it was interrupted."""
    installed, name = set(), ""
    journal = host.path("var/lib/dpkg/updates")
    interrupted = os.path.isdir(journal) and bool(os.listdir(journal))
    for line in (host.read("var/lib/dpkg/status") or "").splitlines():
        if line.startswith("Package: "):
            name = line[9:].strip()
        elif line.startswith("Status: "):
            state = line.split()[-1]
            if state == "installed":
                installed.add(name)
            interrupted = interrupted or state not in ("installed", "config-files", "not-installed")
    return installed, interrupted


def missing_packages(host: Host, family: str, names: List[str]) -> List[str]:
    """Return those of ``names`` that are not installed."""
    if family == "debian":
        installed, _ = dpkg_status(host)
        return [name for name in names if name not in installed]
    return [name for name in names if host.run("rpm", "-q", "--quiet", name).status]


def apt_entries(host: Host) -> List[Dict[str, Any]]:
    """Return what apt's source files hold, in both of their forms, as far as it is enabled.

    The role's own files are left out: what they should hold depends on the others.
    """
    entries = []
    listed = glob.glob(host.path("etc/apt/sources.list.d/*.list"))
    for path in [host.path("etc/apt/sources.list"), *sorted(listed)]:
        for line in (host.read(os.path.relpath(path, host.root)) or "").splitlines():
            found = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(.*)", line.split("#")[0])
            if found:
                options = dict(part.partition("=")[::2] for part in (found.group(1) or "").split())
                entries.append(
                    {
                        "uris": [found.group(2)],
                        "suites": [found.group(3)],
                        "components": found.group(4).split(),
                        "signed_by": options.get("signed-by", ""),
                    }
                )
    for path in sorted(glob.glob(host.path("etc/apt/sources.list.d/*.sources"))):
        if os.path.basename(path).startswith(OWN_SOURCES):
            continue
        text = host.read(os.path.relpath(path, host.root)) or ""
        text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        for stanza in re.split(r"\n[ \t]*\n", text):
            fields = {
                name.lower(): value.strip()
                for name, value in re.findall(
                    r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE
                )
            }
            if "deb" in fields.get("types", "").split() and fields.get("enabled") != "no":
                entries.append(
                    {
                        "uris": fields.get("uris", "").split(),
                        "suites": fields.get("suites", "").split(),
                        "components": fields.get("components", "").split(),
                        "signed_by": fields.get("signed-by", ""),
                    }
                )
    return entries


def apt_sources(host: Host, codename: str) -> Dict[str, Any]:
    """Return the addresses that apt uses, and where the distribution's own archive is.

    Two entries for one archive must agree on ``Signed-By``, or apt refuses both: so it is told,
    too, and C(components) says what is enabled already.
    """
    entries = apt_entries(host)
    archive = None
    for entry in entries:
        if codename in entry["suites"] and "main" in entry["components"] and entry["uris"]:
            archive = dict(entry, uri=entry["uris"][0])
            break
    if archive:
        same = [entry for entry in entries if archive["uri"] in entry["uris"]]
        wanted = (codename, codename + "-updates")
        suites = {suite for entry in same for suite in entry["suites"] if suite in wanted}
        components = {
            name for entry in same if codename in entry["suites"] for name in entry["components"]
        }
        archive = {
            "uri": archive["uri"],
            "suites": sorted(suites),
            "components": sorted(components),
            "signed_by": archive["signed_by"],
        }
    return {"uris": sorted({uri for entry in entries for uri in entry["uris"]}), "archive": archive}


def persistence_unit(host: Host) -> Dict[str, Any]:
    """Return the state of the persistence daemon's unit."""
    names = ("LoadState", "ActiveState", "UnitFileState", "ExecStart")
    answer = host.run("systemctl", "show", "--property=" + ",".join(names), PERSISTENCED)
    state = dict(line.partition("=")[::2] for line in answer.output.splitlines())
    started = re.search(r"argv\[\]=(.*?) ;", state.get("ExecStart", ""))
    command = started.group(1) if started else ""
    without = command.replace(" --no-persistence-mode", "")
    return {
        "found": answer.status == 0 and state.get("LoadState") == "loaded",
        "active": state.get("ActiveState") == "active",
        "enabled": state.get("UnitFileState") in ("enabled", "static", "alias", "generated"),
        # Ubuntu's unit starts the daemon and forbids it to do its work.
        "exec_start": without if without != command else "",
    }


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


def ask_driver(
    host: Host, gpus: List[Dict[str, Any]]
) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """Ask nvidia-smi about the GPUs and write what it says into ``gpus``.

    Returns:
        The topology, and what nvidia-smi said where it failed.
    """
    query = "--query-gpu=" + ",".join(FIELDS)
    answer = host.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    if answer.status:
        return None, answer.output or "nvidia-smi ended with status %d" % answer.status
    told = {gpu["pci"]: gpu for gpu in parse_query(answer.output)}
    for gpu in gpus:
        gpu.update(told.get(gpu["pci"], {}))
    if not told:
        return None, "nvidia-smi sees no GPU"
    topology = host.run("nvidia-smi", "topo", "-m")
    return parse_topology(topology.output) if topology.status == 0 else None, None


def fact_text(
    gpus: List[Dict[str, Any]],
    driver: Optional[Dict[str, Any]],
    topology: Optional[Dict[str, Any]],
) -> str:
    """Return the fact file's text; empty where there is no GPU."""
    if not gpus:
        return ""
    stable = [{name: gpu[name] for name in gpu if name != "persistence"} for gpu in gpus]
    content = {"gpus": stable, "driver": driver, "topology": topology}
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


class Plan:
    """What is left to do, what a human has to mend, and what the owner should know."""

    def __init__(self) -> None:
        self.todo: List[str] = []
        self.problems: List[str] = []
        self.notes: List[str] = []


def plan_container(plan: Plan, host: Host, params: Dict[str, Any], about: Dict[str, Any]) -> None:
    """Plan for a container whose machine has no good driver, or does not hand it over."""
    plan.notes.append(
        "a container: no kernel module for %s can be built or loaded here, and so nvidia-smi cannot"
        " answer; install the driver on the machine and hand its devices over" % about["kernel"]
    )
    if params["in_container"] == "leave":
        return
    if not supported(about):
        plan.problems.append(unsupported(about))
        return
    missing = missing_packages(host, about["family"], params["packages"])
    no_smi = not params["packages"] and not host.has("nvidia-smi")
    if missing or no_smi or not about["blacklisted"] or about["interrupted"]:
        plan.todo.append("install")


def unsupported(about: Dict[str, Any]) -> str:
    return (
        "The role installs no driver on %s %s (%s); it knows Debian 12 and 13, Ubuntu 22.04 and"
        " 24.04, RHEL, Rocky and Alma Linux 9, on x86_64. Install one by hand, then run again."
        % (about["distribution"], about["release"], about["machine"])
    )


def plan_machine(
    plan: Plan,
    host: Host,
    gpus: List[Dict[str, Any]],
    about: Dict[str, Any],
    driver: Optional[Dict[str, Any]],
    refusal: Optional[str],
    minimum: str,
) -> None:
    """Plan for a machine whose driver is not good."""
    limit = version_key(minimum)
    on_disk = about["module_version"]
    has_smi = host.has("nvidia-smi")
    complete = has_smi and not about["interrupted"]
    fine_on_disk = on_disk is not None and version_key(on_disk) >= limit and complete
    other_loaded = driver is not None and driver["version"] != on_disk
    if driver and fine_on_disk and not other_loaded:
        plan.problems.append(
            "Driver %s is loaded, but nvidia-smi fails: %s. Look at `dmesg | grep -i nvrm`."
            % (driver["version"], refusal)
        )
        return
    if not fine_on_disk:
        uninstaller = host.path("usr/bin/nvidia-uninstall")
        if os.path.exists(uninstaller):
            plan.problems.append(
                "A driver from NVIDIA's .run file is installed and is %s; packages cannot replace"
                " it. Remove it with `nvidia-uninstall --silent`, then run again."
                % ("older than %s" % minimum if on_disk or driver else "not usable")
            )
        elif not supported(about):
            plan.problems.append(unsupported(about))
        else:
            plan.todo.append("install")
            if driver and version_key(driver["version"]) < limit:
                plan.notes.append(
                    "driver %s is loaded, older than %s" % (driver["version"], minimum)
                )
        return
    bound = about["nouveau"] or any(gpu["kernel_driver"] == "nouveau" for gpu in gpus)
    if bound or other_loaded:
        why = "nouveau is loaded"
        if driver:
            why = "driver %s is loaded, %s is installed" % (driver["version"], on_disk)
        plan.todo += ["reboot"] if about["blacklisted"] else ["blacklist", "reboot"]
        plan.notes.append(
            "needs a reboot, because %s: set nvidia_driver_reboot to when_needed, or reboot it and"
            " run again" % why
        )
    elif about["secure_boot"]["enabled"] and not about["secure_boot"]["enrolled"]:
        # A module that the distribution signed loads all the same; another one waits for its key.
        plan.todo += ["load", "enrol"]
        plan.notes.append(
            "Secure Boot is on, which loads no kernel module of an unknown key: run `mokutil"
            " --import /%s` as root, choose a password, reboot, and confirm it at the console"
            % SIGNING_KEYS[about["distribution"] == "ubuntu"]
        )
    else:
        plan.todo.append("load")


def plan_persistence(plan: Plan, unit: Dict[str, Any], gpus: List[Dict[str, Any]]) -> None:
    """Plan for a host whose driver is good."""
    if not unit["found"]:
        plan.notes.append(
            "no unit %s: install the daemon from where the driver came from" % PERSISTENCED
        )
        return
    off = any(gpu.get("persistence") is False for gpu in gpus)
    if off or not unit["active"] or not unit["enabled"]:
        plan.todo.append("persistence")


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        ValueError: the oldest driver is no version.
        OSError: a file cannot be read.
    """
    limit = version_key(params["minimum"])
    host = Host(params["root"], params["pci_root"])
    gpus = pci_gpus(host.pci_root)
    plan = Plan()
    about: Dict[str, Any] = {}
    sources: Dict[str, Any] = {}
    unit: Dict[str, Any] = {}
    driver = topology = None
    if not gpus:
        plan.notes.append("no NVIDIA GPU")
    else:
        driver = loaded_driver(host)
        refusal = None
        good = False
        if driver and version_key(driver["version"]) >= limit:
            topology, refusal = ask_driver(host, gpus)
            good = refusal is None
        container = is_container(host)
        if good:
            unseen = [gpu["pci"] for gpu in gpus if gpu.get("uuid") is None]
            if unseen:
                plan.notes.append("GPUs that the driver does not see: %s" % ", ".join(unseen))
            if params["persistence"] and not container:
                unit = persistence_unit(host)
                plan_persistence(plan, unit, gpus)
        else:
            about = describe(host, params["blacklist_path"])
            if about["family"] == "debian":
                sources = apt_sources(host, about["codename"])
            if container:
                plan_container(plan, host, params, about)
            else:
                plan_machine(plan, host, gpus, about, driver, refusal, params["minimum"])
    fact = fact_text(gpus, driver, topology)
    if (host.read(params["fact_path"]) or "") != fact:
        plan.todo.append("fact")
    return {
        "changed": False,
        "ready": not plan.todo and not plan.problems,
        "todo": plan.todo,
        "problems": plan.problems,
        "notes": plan.notes,
        "gpus": gpus,
        "driver": driver,
        "topology": topology,
        "fact": fact,
        "host": about,
        "sources": sources,
        "persistence": unit,
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "minimum": {"type": "str", "required": True},
            "pci_root": {"type": "path", "default": "/sys/bus/pci/devices"},
            "persistence": {"type": "bool", "default": True},
            "in_container": {
                "type": "str",
                "choices": ["leave", "packages"],
                "default": "leave",
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "fact_path": {"type": "path", "default": "/etc/ansible/facts.d/nvidia.fact"},
            "blacklist_path": {
                "type": "path",
                "default": "/etc/modprobe.d/nvidia-driver-nouveau.conf",
            },
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module.params))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
