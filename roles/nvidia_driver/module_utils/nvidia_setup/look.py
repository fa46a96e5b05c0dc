"""The whole look: what GPUs a host has, whether their driver is good, what to do."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

from .about import describe, is_container
from .apt_sources import apt_sources
from .driver import ask_driver, loaded_driver, pci_gpus, persistence_unit
from .plan import Plan, plan_container, plan_machine, plan_persistence
from .system import Host
from .versions import version_key


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
            topology, refusal = ask_driver(gpus)
            good = refusal is None
        container = is_container(host)
        if good:
            unseen = [gpu["pci"] for gpu in gpus if gpu.get("uuid") is None]
            if unseen:
                plan.notes.append("GPUs that the driver does not see: %s" % ", ".join(unseen))
            if params["persistence"] and not container:
                unit = persistence_unit()
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
