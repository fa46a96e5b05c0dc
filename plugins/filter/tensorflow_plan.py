"""Ansible filter: decides from the locks and a host's state what to install there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

#: Used if no lock exists for a host's variant; the role then fails.
NO_LOCK = {"path": "", "sha256": "", "framework": "", "version": "", "variant": "", "imports": []}


def plan(
    host: Mapping[str, Any],
    locks: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any] | None,
    variant: str,
    link: str,
    require_gpus: bool,
) -> dict[str, Any]:
    """Return the plan for a host.

    Args:
        host: the facts from the module tensorflow_host.
        locks: results of the filter tensorflow_locks, one for each variant. A single one is used
        for every host that does not require the other variant. One with the variant ``any`` is used
        for all hosts.
        extra: the same for the lock file of packages on top of TensorFlow, or None.
        variant: the requested variant. ``auto`` means ``gpu`` if there is an NVIDIA driver.
        link: name of the link to the environment.
        require_gpus: whether to try the framework again if it saw fewer GPUs than the driver shows.

    Returns:
        ``tensorflow_installed`` of the role, see its README.md, and for its tasks: ``lock`` and
        ``top_lock``; ``base`` and ``top``, the names of the environments with the framework and
        with packages on top, if any; ``target``, to which the link leads, and ``previous``, to
        which it led before; ``driver``, whose GPUs the framework must see; and ``tried``, the
        marker of the environment if the framework was tried under that driver.
    """
    if variant == "auto":
        variant = "gpu" if host["nvidia"] else "cpu"
        variant = locks[0]["variant"] if len(locks) == 1 else variant
    lock = next((lock for lock in locks if lock["variant"] in (variant, "any")), NO_LOCK)
    python = host["python"]["version"]
    series = ".".join(python.split(".")[:2])
    # The names show what the environments are made from.
    name = f"{lock['framework']}-{lock['version']}-{lock['variant']}"
    name = "bare" if lock["framework"] == "none" else name
    base = f"{name}-py{series}-{lock['sha256']:.12}"
    top = f"extra-{_sha256(base, extra['sha256']):.12}" if extra else ""
    target, previous = top or base, host["links"].get(link, "")

    marker = host["environments"].get(base, {})
    driver = host["driver"] if lock["variant"] == "gpu" else None
    is_tried = marker.get("trial") == {"imports": lock["imports"], "driver": driver}
    tried = marker if is_tried else {}
    too_few = driver and is_tried and tried["gpus"] < driver["gpus"]
    lacks = {
        "base": not marker,
        "extra": bool(top) and not host["environments"].get(top),
        "trial": bool(marker) and (not is_tried or (too_few and require_gpus)),
        "link": target != previous,
    }
    return {
        "framework": lock["framework"],
        "version": lock["version"],
        "variant": lock["variant"] or variant,
        "venv": f"{host['root']}/venvs/{target}",
        "link": f"{host['root']}/{link}",
        "python_version": python,
        "parts": [part for part, is_missing in lacks.items() if is_missing],
        "gpus": driver and {"driver": driver["gpus"], "seen": tried.get("gpus")},
        "removed": [],
        "notes": [],
        "lock": lock,
        "top_lock": extra,
        "base": base,
        "top": top,
        "target": target,
        "previous": previous,
        "driver": driver,
        "tried": tried,
    }


def _sha256(*lines: str) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


class FilterModule:
    """The role's filter."""

    def filters(self) -> dict[str, Any]:
        """Return the filter by name."""
        return {"tensorflow_plan": plan}
