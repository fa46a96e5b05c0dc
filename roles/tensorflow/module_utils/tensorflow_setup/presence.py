"""The environment as it is wanted: what is missing, and the steps that make it."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Set

from . import acceptance, cleanup, gpus, installation
from .interpreter import choose_lock, examine_python
from .places import Place, locate
from .programs import SetupError


class Done(NamedTuple):
    """What was done, or would be."""

    parts: List[str]
    removed: List[str]
    notes: List[str]
    warnings: List[str]


def make(params: Dict[str, Any], check_only: bool) -> Dict[str, Any]:
    """Do what the module's parameters want, or report what would be done; returns its result."""
    lock = choose_lock(params["locks"], params["variant"])
    python = examine_python(params["python"], params["supported_python"], lock)
    place = locate(params, lock, python, gpus.detect() if lock.variant == "gpu" else None)
    target, there = place.target(), set(cleanup.environments(place.folder))
    ready, done = place.ready(), Done([], [], [], [])
    if not ready:
        done = _plan(place, params)
        if not check_only:
            if not params["pip"]:
                raise SetupError("The module needs pip and requirements: see its documentation.")
            os.makedirs(place.folder, exist_ok=True)
            with installation.exclusive(place.folder) as held:
                ready = place.ready()  # who held the lock before may have done it all
                work = installation.Work(python, params, held)
                done = Done([], [], [], []) if ready else _install(place, work)
    wanted = {place.base.name, place.wanted.name}
    seen = place.gpus_seen()
    if place.driver and seen is not None and seen < place.driver.gpus and not done.warnings:
        found = acceptance.fewer_gpus(lock.version, place.driver, seen)
        done.warnings.append(
            f"{found}, as was found once. With tensorflow_require_gpus=true it is tried again."
        )
    return {
        "changed": not ready,
        "ready": ready,
        "parts": done.parts,
        "removed": done.removed,
        "notes": done.notes,
        "gpus": {"driver": place.driver.gpus, "tensorflow": seen} if place.driver else None,
        "version": lock.version,
        "variant": lock.variant,
        "lock": lock.path,
        "root": place.root,
        "venv": place.wanted.folder,
        "link": place.link,
        "python_version": python.version,
        "warnings": done.warnings,
        "diff": {
            "before_header": place.root,
            "after_header": place.root,
            "before": _listing(place, target, there),
            "after": _listing(place, place.wanted.folder, there - {*done.removed} | wanted),
        },
    }


def _listing(place: Place, target: Optional[str], names: Set[str]) -> str:
    """The link and the environments, for the diff."""
    link = f"{os.path.basename(place.link)} -> {os.path.basename(target)}\n" if target else ""
    return link + "".join(f"venvs/{name}\n" for name in sorted(names))


def _missing(place: Place) -> List[str]:
    """What has to be installed."""
    parts = [] if place.base.finished() else ["tensorflow"]
    return parts + (["extra"] if place.extra and not place.extra.finished() else [])


def _plan(place: Place, params: Dict[str, Any]) -> Done:
    """What would be done, after the checks that need no change."""
    parts = _missing(place)
    installation.check_input(place, params["wheelhouse"])
    # What is half made, or made now by somebody else, takes up space that is counted already.
    if "tensorflow" in parts and not os.path.lexists(place.base.folder):
        installation.check_space(place, params["wheelhouse"])
    if place.linked() or not os.path.isdir(place.root):
        return Done(parts, [], [], [])
    return Done(parts, *cleanup.leftovers(place, params["keep"]), [])


def _install(place: Place, work: installation.Work) -> Done:
    """Install, try and link what is wanted, and remove what nobody needs then.

    With a SetupError, the link and what it points to are as before.
    """
    parts = _missing(place)
    warnings: List[str] = []
    if "tensorflow" in parts:
        cleanup.remove(place.folder, [place.base.name])
        installation.check_space(place, work.params["wheelhouse"])
        try:
            installation.install(place.base, work.params["requirements"], work)
            warnings = acceptance.accept_base(place, work)
        except SetupError:
            if not place.base.finished():
                cleanup.remove(place.folder, [place.base.name])
            raise
    elif not place.accepted():
        warnings = acceptance.accept_base(place, work)
    if place.extra and "extra" in parts:
        try:
            extra = work.params["extra_requirements"]
            installation.install(place.extra, extra, work, below=place.base)
            acceptance.accept_extra(place, work)
        except SetupError:
            cleanup.remove(place.folder, [place.extra.name])
            raise
    if place.linked():
        return Done(parts, [], [], warnings)
    place.switch_link()
    old, notes = cleanup.leftovers(place, work.params["keep"])
    removed, failures = cleanup.remove(place.folder, old)
    return Done(parts, removed, notes + failures, warnings)
