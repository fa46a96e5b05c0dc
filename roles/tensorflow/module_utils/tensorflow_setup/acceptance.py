"""Trying a new environment before anything uses it."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional

from . import gpus
from .installation import Work
from .places import Environment, Place
from .programs import SetupError, ending, run, tail

#: Longest import of the new environment, in seconds: its files are cold, perhaps on NFS.
IMPORT_LIMIT_S = 900.0

ACCEPT = """
import importlib, json, sys
how, *names = sys.argv[1:]
modules = [importlib.import_module(name) for name in names]
print(json.dumps({
    "version": modules[0].__version__,
    "gpus": len(modules[0].config.list_physical_devices("GPU")) if how == "gpus" else None,
}))
"""


class Answer(NamedTuple):
    """What a new environment printed."""

    version: Optional[str]
    gpus: Optional[int]
    errors: bytes


def accept_base(place: Place, work: Work) -> List[str]:
    """Try the environment with TensorFlow and note that it is good; returns warnings.

    Where TensorFlow sees too few GPUs, the environment stays: a new driver makes it good.
    """
    driver = place.driver
    answer = _try_imports(place.base, place, work, driver is not None)
    marker = {**_marker(place, work), "imports": place.lock.imports}
    if driver is None or answer.gpus is None:
        place.base.write_marker(marker)
        return []
    fewer = answer.gpus < driver.gpus
    found = {"driver": driver.version, "of_driver": driver.gpus, "of_tensorflow": answer.gpus}
    place.base.write_marker(marker if fewer and place.require_gpus else {**marker, "gpus": found})
    if not fewer:
        return []
    cause = gpus.explain(driver, work.params["driver_minimum"], answer.errors)
    problem = f"{fewer_gpus(place.lock.version, driver, answer.gpus)}: {cause}."
    if not place.require_gpus:
        return [problem]
    stays = "It stays in use." if place.linked() else "No link was changed."
    raise SetupError(
        f"{problem} {stays} With tensorflow_require_gpus=false this is a warning.\n"
        f"{gpus.relevant(answer.errors)}"
    )


def fewer_gpus(version: str, driver: gpus.Driver, seen: int) -> str:
    """Both numbers, as a part of a sentence."""
    return (
        f"TensorFlow {version} sees {seen} of the {driver.gpus} GPUs that the driver"
        f" {driver.version} shows"
    )


def accept_extra(place: Place, work: Work) -> None:
    """Try TensorFlow with the packages on top, and note that it is good."""
    _try_imports(place.wanted, place, work, False)
    place.wanted.write_marker({**_marker(place, work), "base": place.base.name})


def _marker(place: Place, work: Work) -> Dict[str, Any]:
    lock = place.lock
    return {"version": lock.version, "variant": lock.variant, "python": work.python.version}


def _try_imports(environment: Environment, place: Place, work: Work, count: bool) -> Answer:
    """Import what the lock must have; the first module has to show the locked version."""
    names = ", ".join(place.lock.imports)
    command = [environment.python, "-I", "-c", ACCEPT, "gpus" if count else "hidden"]
    # GPUs are hidden where they are not counted: what runs on them is not disturbed.
    changes: Dict[str, Optional[str]] = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    if count:  # missing libraries are named at the level of information, not of errors
        changes = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    try:
        done = run([*command, *place.lock.imports], work.held, changes, timeout=IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"The new environment did not import {names} within {IMPORT_LIMIT_S:.0f} s. Check the"
            " load and the disk of this host, and run again."
        ) from None
    if done.returncode:
        illegal = ": this processor lacks instructions that TensorFlow needs, such as AVX"
        illegal = illegal if done.returncode == -signal.SIGILL else ""
        raise SetupError(
            f"The new environment cannot import {names} ({ending(done.returncode)}{illegal}). No"
            f" link was changed. Fix what the last lines name, or change the lock"
            f" {environment.requirements}.\n{tail(done.stderr)}"
        )
    try:
        answer = Answer(**json.loads(done.stdout.splitlines()[-1]), errors=done.stderr)
    except (ValueError, TypeError, IndexError):
        answer = Answer(None, None, done.stderr)
    if answer.version != place.lock.version:
        raise SetupError(
            f"The new environment's {place.lock.imports[0]} has the version {answer.version}, the"
            f" lock {place.lock.path} has {place.lock.version}. No link was changed. Lock again."
        )
    return answer
