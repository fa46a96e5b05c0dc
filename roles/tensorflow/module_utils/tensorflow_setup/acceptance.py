"""Trying a new environment before anything uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any, Dict, Tuple

from . import gpus
from .programs import SetupError, ending, run, tail
from .wanted import Environment, Wanted

#: Longest import of the new environment, in seconds: its files are cold, perhaps on NFS.
IMPORT_LIMIT_S = 900.0

ACCEPT = """
import importlib, json, sys
how, *names = sys.argv[1:]
modules = [importlib.import_module(name) for name in names]
print(json.dumps({
    "version": modules[0].__version__,
    "gpus": len(modules[0].config.list_physical_devices("GPU")) if how == "count" else None,
}))
"""


def accept(environment: Environment, wanted: Wanted, held: int) -> None:
    """Try an environment, and note in its marker that it is good.

    Where TensorFlow sees too few GPUs, the environment stays: a new driver makes it good.
    """
    lock, base = wanted.lock, environment is wanted.base
    driver = wanted.driver if base else None
    seen, errors = _try_imports(environment, wanted, driver is not None, held)
    known = {"version": lock["version"], "variant": lock["variant"]}
    marker = {**known, "python": wanted.python_version}
    if not base:
        environment.write_marker({**marker, "base": wanted.base.name})
        return
    problem = ""
    if driver and seen < driver.gpus:
        problem = (
            f"TensorFlow {lock['version']} sees {seen} of the {driver.gpus} GPUs that the driver"
            f" {driver.version} shows:"
            f" {gpus.explain(driver, wanted.params['driver_minimum'], errors)}."
        )
    result = {"trial": wanted.trial, "gpus": seen, "problem": problem}
    environment.write_marker({**marker, **result})
    if problem and wanted.params["require_gpus"]:
        stays = "It stays in use." if wanted.linked() else "No link was changed."
        raise SetupError(
            f"{problem} {stays} With tensorflow_require_gpus=false this is a warning.\n"
            f"{gpus.relevant(errors)}"
        )


def _try_imports(
    environment: Environment, wanted: Wanted, count: bool, held: int
) -> Tuple[Any, bytes]:
    """Import what the lock must have; the first module has to show the locked version.

    Returns the number of GPUs, if they are to be counted, and what was written.
    """
    lock = wanted.lock
    names = ", ".join(lock["imports"])
    command = [environment.python, "-I", "-c", ACCEPT, "count" if count else "hide"]
    # GPUs are hidden where they are not counted: what runs on them is not disturbed. Missing
    # libraries are named at the level of information, not of errors.
    changes = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    changes = {"TF_CPP_MIN_LOG_LEVEL": "0"} if count else changes
    try:
        done = run([*command, *lock["imports"]], held, {**os.environ, **changes}, IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"The new environment did not import {names} within {IMPORT_LIMIT_S:.0f} s. Check the"
            " load and the disk of this host, and run again."
        ) from None
    if done.returncode:
        cause = "Fix what the last lines name"
        if done.returncode == -signal.SIGILL:
            cause = "Use another host: this processor lacks instructions, such as AVX"
        raise SetupError(
            f"The new environment cannot import {names} ({ending(done.returncode)}). No link was"
            f" changed. {cause}, or change the lock {environment.lock}.\n{tail(done.stderr)}"
        )
    answer: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if answer["version"] != lock["version"]:
        raise SetupError(
            f"The new environment's {lock['imports'][0]} has the version {answer['version']}, the"
            f" lock {lock['path']} has {lock['version']}. No link was changed. Lock again."
        )
    return answer["gpus"], done.stderr
