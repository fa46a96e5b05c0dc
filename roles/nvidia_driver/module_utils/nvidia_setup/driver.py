"""The GPUs, their driver at work and its daemon, as kernel, nvidia-smi and systemd tell them."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from .system import Host, run

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
PERSISTENCED = "nvidia-persistenced.service"


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


def bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it: four digits of the domain, small letters."""
    domain, _, rest = text.strip().lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest)


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


def ask_driver(
    gpus: List[Dict[str, Any]],
) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """Ask nvidia-smi about the GPUs and write what it says into ``gpus``.

    Returns:
        The topology, and what nvidia-smi said where it failed.
    """
    query = "--query-gpu=" + ",".join(FIELDS)
    answer = run("nvidia-smi", query, "--format=csv,noheader,nounits")
    if answer.status:
        return None, answer.output or "nvidia-smi ended with status %d" % answer.status
    told = {gpu["pci"]: gpu for gpu in parse_query(answer.output)}
    for gpu in gpus:
        gpu.update(told.get(gpu["pci"], {}))
    if not told:
        return None, "nvidia-smi sees no GPU"
    topology = run("nvidia-smi", "topo", "-m")
    return parse_topology(topology.output) if topology.status == 0 else None, None


def persistence_unit() -> Dict[str, Any]:
    """Return the state of the persistence daemon's unit."""
    names = ("LoadState", "ActiveState", "UnitFileState", "ExecStart")
    answer = run("systemctl", "show", "--property=" + ",".join(names), PERSISTENCED)
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
