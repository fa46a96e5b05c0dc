"""Making an environment with locked packages, one at a time, and trying it before it is used."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Tuple

from . import gpus
from .programs import SetupError, ending, run, tail
from .wanted import Environment, Wanted

#: Measured sizes of the role's locks, in MB (10^6 bytes): of the wheels, and of what they hold.
WHEELS_MB = {"cpu": 400, "gpu": 3340}
UNPACKED_MB = {"cpu": 1690, "gpu": 6940}
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0
#: What pip's standard error means where it matches, and what helps; the first that matches.
CAUSES = [
    (
        r"DO NOT MATCH THE HASHES",
        "{source} has another file than the one that is locked. Use an unchanged source"
        " (tensorflow_index_url, tensorflow_wheelhouse; playbooks/wheelhouse.yml fixes the folder"
        " tensorflow_wheelhouse_source)",
    ),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|NameResolutionError"
        r"|Network is unreachable|Connection refused|name resolution",
        "this host cannot reach the package index. Set tensorflow_index_url to one that it can"
        " reach, or tensorflow_wheelhouse_source to a folder with the wheels on the control node"
        " (playbooks/wheelhouse.yml makes it)",
    ),
    (
        r"not a trusted or secure host|CERTIFICATE_VERIFY_FAILED",
        "pip does not trust the package index. Give it an https:// address, or make this host"
        " trust it (cert or trusted-host in its pip.conf)",
    ),
    (
        r"No matching distribution found",
        "{source} has no fitting wheel for Python {python} on {system}. Put it"
        " there, or use another source (tensorflow_index_url, tensorflow_wheelhouse)",
    ),
    (r"No space left", "the filesystem of {folder} is full. Free space, and run again"),
]


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


@contextmanager
def exclusive(folder: str) -> Iterator[int]:
    """Hold the lock file of a folder; yields its descriptor.

    Children that inherit the descriptor hold the lock too: a pip that outlives a killed module
    still keeps others away.
    """
    path = os.path.join(folder, ".lock")
    deadline = time.monotonic() + LOCK_WAIT_S
    with open(path, "a", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"Another installation on this host has held {path} for"
                        f" {LOCK_WAIT_S / 60:.0f} minutes. See what it does (fuser -v {path}), end"
                        " it, and run again."
                    ) from None
            time.sleep(0.2)
        yield stream.fileno()


def check_host(wanted: Wanted) -> None:
    """Refuse what would fail later, before anything is changed."""
    wheelhouse, lock = wanted.params["wheelhouse"], wanted.lock
    above = wanted.folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise SetupError(
            f"tensorflow_root is {wanted.root}: it must be a folder that this user may write to;"
            f" {above} is none."
        )
    if os.path.lexists(wanted.link) and not os.path.islink(wanted.link):
        raise SetupError(
            f"{wanted.link} is not a link made by this role. Move it away, or set tensorflow_root"
            " to another folder."
        )
    if wheelhouse and not os.path.isdir(wheelhouse):
        raise SetupError(
            f"tensorflow_wheelhouse: there is no folder {wheelhouse} on this host. Put the wheels"
            f" of {lock['path']} there, or leave tensorflow_wheelhouse empty to use an index."
        )
    # What is half made, or made now by somebody else, takes up space that is counted already.
    if os.path.lexists(wanted.base.folder):
        return
    space = wanted.params["space_mb"][lock["variant"]]
    need_mb = space["installed"] + (0 if wheelhouse else space["download"])
    disk = os.statvfs(above)
    have_mb = disk.f_bavail * disk.f_frsize // 10**6
    if have_mb < need_mb:
        raise SetupError(
            f"Too little space for TensorFlow {lock['version']} ({lock['variant']}): the filesystem"
            f" of {above} has {have_mb} MB free, {need_mb} MB are needed. Free"
            f" {need_mb - have_mb} MB (old environments are in {wanted.folder}), or set"
            " tensorflow_root to a folder on another filesystem."
        )


def install(environment: Environment, wanted: Wanted, held: int) -> None:
    """Make an environment and put the packages of its lock file into it.

    What was there before goes. One on top of TensorFlow's finds the packages of that one, too.
    """
    params = wanted.params
    requirements = os.path.join(params["sent"], f"{environment.part}.txt")
    with open(requirements, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() != environment.sha256:
            raise SetupError(f"{environment.lock} was changed during the run. Run again.")
    if os.path.lexists(environment.folder):
        shutil.rmtree(environment.folder)
    venv = [wanted.python, "-I", "-m", "venv", "--without-pip", environment.folder]
    done = run(venv, held)
    if done.returncode:
        raise SetupError(
            f"{wanted.python} cannot make a virtual environment in {environment.folder}"
            f" ({ending(done.returncode)}). Fix what the last lines name, or set tensorflow_python"
            f" to another.\n{tail(done.stderr)}"
        )
    if environment is not wanted.base:
        # Python runs this line when it starts. The path is complete: through the link of an
        # environment, a relative one would lead elsewhere.
        line = f"import site; site.addsitedir({wanted.base.packages!r})\n"
        path = os.path.join(environment.packages, "tensorflow.pth")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(line)
    # Wheels are unpacked in the environment's folder and not in /tmp, which is small on many hosts.
    scratch = os.path.join(environment.folder, ".scratch")
    os.mkdir(scratch)
    wheelhouse = params["wheelhouse"]
    command = [environment.python, "-I", os.path.join(params["sent"], "pip"), "install"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-compile", "--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--progress-bar", "off", "--requirement", requirements]
    command += ["--no-index", "--find-links", wheelhouse] if wheelhouse else []
    done = run(command, held, _pip_environment(params, scratch))
    if done.returncode:
        errors = done.stderr.decode(errors="replace")
        causes = [text for pattern, text in CAUSES if re.search(pattern, errors)]
        killed = "it was killed, perhaps because memory was short. Run again"
        causes.append(killed if done.returncode < 0 else "see its last lines")
        cause = causes[0].format(
            source=f"the folder {wheelhouse}" if wheelhouse else "the package index",
            python=wanted.python_version,
            system=" ".join((platform.system(), platform.machine(), *platform.libc_ver())),
            folder=environment.folder,
        )
        raise SetupError(
            f"pip could not install {environment.lock} ({ending(done.returncode)}): {cause}. No"
            f" link was changed.\n{tail(done.stderr)}"
        )
    # With all cores, where pip takes one. A file that is no Python of this version stays as it is.
    compile_all = [environment.python, "-I", "-m", "compileall", "-qq", "-j", "0"]
    run([*compile_all, environment.packages], held)
    shutil.rmtree(scratch)


def _pip_environment(params: Dict[str, Any], scratch: str) -> Dict[str, str]:
    """The environment of pip: where packages go, and come from, is not for the user's settings."""
    # With a folder of wheels, nothing else is asked: an index in pip.conf may be out of reach.
    ours = "PIP_" if params["wheelhouse"] else ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    environment.update(TMPDIR=scratch, PIP_USER="0")
    if params["wheelhouse"]:
        environment["PIP_CONFIG_FILE"] = os.devnull
    elif params["index_url"]:
        environment["PIP_INDEX_URL"] = params["index_url"]
    return environment


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
