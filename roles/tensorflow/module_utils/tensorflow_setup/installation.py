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
from typing import Any, Dict, Iterator, List, Tuple

from . import gpus, index_settings
from .programs import SetupError, ending, run, tail
from .wanted import Environment, Wanted

#: Measured sizes of the role's locks, in MB (10^6 bytes): of the wheels, and of what they hold.
WHEELS_MB = {"cpu": 400, "gpu": 3340}
UNPACKED_MB = {"cpu": 1690, "gpu": 6940}
#: Folder under venvs/ in which uv keeps the unpacked wheels of scripts' packages.
CACHE = ".cache"
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0
#: What uv's standard error means where it matches, and what helps; the first that matches.
CAUSES = [
    (
        r"Hash mismatch",
        "{source} has another file than the one that is locked. Use an unchanged source"
        " (tensorflow_index_url, tensorflow_wheelhouse; playbooks/wheelhouse.yml fixes the folder"
        " tensorflow_wheelhouse_source)",
    ),
    (
        r"invalid peer certificate|certificate verify",
        "this host does not trust the certificate of the package index. Add its authority to the"
        " host's certificates, or name the file with it (SSL_CERT_FILE in the environment, cert in"
        " pip.conf)",
    ),
    (
        r"Failed to fetch|error sending request|dns error|tcp connect error|timed out",
        "this host cannot reach the package index. Set tensorflow_index_url to one that it can"
        " reach, or tensorflow_wheelhouse_source to a folder with the wheels on the control node"
        " (playbooks/wheelhouse.yml makes it)",
    ),
    (
        r"No solution found",
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

    Children that inherit the descriptor hold the lock too: an uv that outlives a killed module
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
    requirements = os.path.join(wanted.params["sent"], f"{environment.part}.txt")
    with open(requirements, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() != environment.sha256:
            raise SetupError(f"{environment.lock} was changed during the run. Run again.")
    if os.path.lexists(environment.folder):
        shutil.rmtree(environment.folder)
    command = ["venv", "--no-project", "--no-config", "--python", wanted.python]
    done = _uv([*command, environment.folder], wanted, index_settings.without_uv(), held)
    if done.returncode:
        raise SetupError(
            f"{wanted.python} cannot make a virtual environment in {environment.folder}"
            f" ({ending(done.returncode)}). Fix what the last lines name, or set tensorflow_python"
            f" to another.\n{tail(done.stderr)}"
        )
    # Wheels are unpacked beside the packages and not in /tmp, which is small on many hosts. Those
    # of scripts are kept for the next script; TensorFlow's would only take up space.
    scratch = os.path.join(environment.folder, ".scratch")
    os.mkdir(scratch)
    if environment is wanted.base:
        cache, there = os.path.join(scratch, "cache"), []
    else:
        cache, there = os.path.join(wanted.folder, CACHE), _distributions(wanted.base)
        _put_on_top(environment, wanted.base)
    excluded = os.path.join(scratch, "excluded.txt")
    with open(excluded, "w", encoding="utf-8") as names:
        names.writelines(f"{name}\n" for name in there)
    command = ["pip", "install", "--python", environment.python, "--requirement", requirements]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--excludes", excluded]
    command += ["--compile-bytecode", "--cache-dir", cache]
    options, settings = _source(wanted)
    done = _uv([*command, *options], wanted, {**settings, "TMPDIR": scratch}, held)
    if done.returncode:
        raise SetupError(
            f"uv could not install {environment.lock} ({ending(done.returncode)}):"
            f" {_cause(done, environment, wanted)}. No link was changed.\n{tail(done.stderr)}"
        )
    shutil.rmtree(scratch)


def _put_on_top(environment: Environment, base: Environment) -> None:
    """Have an environment find the packages of another one, after its own."""
    # Python runs this line when it starts. The path is complete: through the link of an
    # environment, a relative one would lead elsewhere.
    line = f"import site; site.addsitedir({base.packages!r})\n"
    path = os.path.join(environment.packages, "tensorflow.pth")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(line)


def _distributions(environment: Environment) -> List[str]:
    """The names of the packages of an environment."""
    return sorted(
        name.partition("-")[0].replace("_", "-")
        for name in os.listdir(environment.packages)
        if name.endswith(".dist-info")
    )


def _source(wanted: Wanted) -> Tuple[List[str], Dict[str, str]]:
    """Where packages come from: options of uv, and the environment that it runs in."""
    wheelhouse = wanted.params["wheelhouse"]
    if wheelhouse:  # nothing else is asked: an index may be out of reach
        options = ["--no-index", "--find-links", wheelhouse, "--offline", "--no-config"]
        return options, index_settings.without_uv()
    # The hashes decide which file is right, wherever it is.
    options = ["--index-strategy", "unsafe-best-match"]
    return options, index_settings.of_host(wanted.params["index_url"])


def _cause(
    done: subprocess.CompletedProcess[bytes], environment: Environment, wanted: Wanted
) -> str:
    """Why uv could not install, and what helps."""
    errors = done.stderr.decode(errors="replace")
    causes = [text for pattern, text in CAUSES if re.search(pattern, errors)]
    killed = "it was killed, perhaps because memory was short. Run again"
    causes.append(killed if done.returncode < 0 else "see its last lines")
    wheelhouse = wanted.params["wheelhouse"]
    return causes[0].format(
        source=f"the folder {wheelhouse}" if wheelhouse else "the package index",
        python=wanted.python_version,
        system=" ".join((platform.system(), platform.machine(), *platform.libc_ver())),
        folder=environment.folder,
    )


def _uv(
    words: List[str], wanted: Wanted, settings: Dict[str, str], held: int
) -> subprocess.CompletedProcess[bytes]:
    """Run uv with plain output. It downloads no Python."""
    options = ["--quiet", "--no-progress", "--color", "never", "--no-python-downloads"]
    uv = wanted.params["uv"]
    try:
        return run([uv, *words, *options], held, settings)
    except OSError as error:
        raise SetupError(
            f"uv does not run on this host ({error}); {uv} was sent from the control node. Set"
            " tensorflow_uv to uv's program for Linux on x86_64, from its releases or PyPI."
        ) from None


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
