"""What is left to do on a host with a GPU."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from .about import SIGNING_KEYS, supported, unsupported
from .driver import PERSISTENCED
from .installed import missing_packages
from .system import Host, has
from .versions import version_key


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
    no_smi = not params["packages"] and not has("nvidia-smi")
    if missing or no_smi or not about["blacklisted"] or about["interrupted"]:
        plan.todo.append("install")


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
    has_smi = has("nvidia-smi")
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
