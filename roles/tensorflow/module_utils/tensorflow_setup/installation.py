"""Making an environment and putting locked packages into it, one installation at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional
from urllib.parse import urlsplit

from .interpreter import Interpreter
from .places import Environment, Place
from .programs import SetupError, ending, run, tail

#: Free space that an installation needs, in MB (10^6 bytes), and what the downloaded wheels need in
#: addition until they are unpacked. Measured: cpu 1890 and 400, gpu 6940 and 3340.
INSTALLED_MB = {"cpu": 2100, "gpu": 7400}
DOWNLOAD_MB = {"cpu": 500, "gpu": 3600}
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
        "{source} has no fitting wheel for Python {python.version} on {python.system}. Put it"
        " there, or use another source (tensorflow_index_url, tensorflow_wheelhouse)",
    ),
    (r"No space left", "the filesystem of {folder} is full. Free space, and run again"),
]


class Work(NamedTuple):
    """What every step of an installation needs."""

    python: Interpreter
    params: Dict[str, Any]  # of the module
    held: int  # descriptor of the lock


@contextmanager
def exclusive(folder: str) -> Iterator[int]:
    """Hold the lock file of a folder; yields its descriptor.

    Children that inherit the descriptor hold the lock too: a pip that outlives a killed module
    still keeps others away.
    """
    path = os.path.join(folder, ".lock")
    with open(path, "a", encoding="utf-8") as stream:
        deadline = time.monotonic() + LOCK_WAIT_S
        while not _take(stream.fileno()):
            if time.monotonic() > deadline:
                raise SetupError(
                    f"Another installation on this host has held {path} for"
                    f" {LOCK_WAIT_S / 60:.0f} minutes. See what it does (fuser -v {path}), end it,"
                    " and run again."
                )
            time.sleep(0.2)
        yield stream.fileno()


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def existing(path: str) -> str:
    """The path, or what of it exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def check_input(place: Place, wheelhouse: str) -> None:
    """Refuse what would fail later, before anything is changed."""
    above = existing(place.folder)
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise SetupError(
            f"tensorflow_root is {place.root}: it must be a folder that this user may write to;"
            f" {above} is none."
        )
    if os.path.lexists(place.link) and not os.path.islink(place.link):
        raise SetupError(
            f"{place.link} is not a link made by this role. Move it away, or set tensorflow_root to"
            " another folder."
        )
    if wheelhouse and not os.path.isdir(wheelhouse):
        raise SetupError(
            f"tensorflow_wheelhouse: there is no folder {wheelhouse} on this host. Put the wheels"
            f" of {place.lock.path} there, or leave tensorflow_wheelhouse empty to use an index."
        )


def check_space(place: Place, wheelhouse: str) -> None:
    """Refuse an installation of TensorFlow that would fill the disk."""
    variant = place.lock.variant
    need_mb = INSTALLED_MB[variant] + (0 if wheelhouse else DOWNLOAD_MB[variant])
    path = existing(place.folder)
    disk = os.statvfs(path)
    have_mb = disk.f_bavail * disk.f_frsize // 10**6
    if have_mb < need_mb:
        raise SetupError(
            f"Too little space for TensorFlow {place.lock.version} ({variant}): the"
            f" filesystem of {path} has {have_mb} MB free, {need_mb} MB are needed. Free"
            f" {need_mb - have_mb} MB (old environments are in {place.folder}), or"
            " set tensorflow_root to a folder on another filesystem."
        )


def check_index_url(url: str) -> List[str]:
    """The secret in an index URL, if it has one; the URL itself is in no message."""
    try:
        address = urlsplit(url)
        good = not url or address.scheme in ("https", "http", "file")
    except ValueError:
        good = False
    if not good:
        raise SetupError(
            "tensorflow_index_url is no address of a package index: it must begin with https://,"
            " http:// or file://, and must be a complete URL (its value is not shown here)."
        )
    return [part for part in [address.password or address.username] if part]


def install(
    environment: Environment, requirements: str, work: Work, below: Optional[Environment] = None
) -> None:
    """Make an environment and put the packages of a lock file of this host into it.

    It finds the packages of the environment ``below``, too. What was there before goes.
    """
    with open(requirements, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() != environment.sha256:
            raise SetupError(f"{environment.requirements} was changed during the run. Run again.")
    if os.path.lexists(environment.folder):
        shutil.rmtree(environment.folder)
    python = work.python.executable
    done = run([python, "-I", "-m", "venv", "--without-pip", environment.folder], work.held)
    if done.returncode:
        raise SetupError(
            f"{python} cannot make a virtual environment in {environment.folder} (exit code"
            f" {done.returncode}). Install the complete Python (Debian: python3, not"
            f" python3-minimal), or set tensorflow_python to another.\n{tail(done.stderr)}"
        )
    if below is not None:
        # Python runs this line when it starts. The path is complete: through the link of an
        # environment, a relative one would lead elsewhere.
        line = f"import site; site.addsitedir({below.packages(work.python)!r})\n"
        packages = environment.packages(work.python)
        with open(os.path.join(packages, "tensorflow.pth"), "w", encoding="utf-8") as stream:
            stream.write(line)
    # Wheels are unpacked in the environment's folder and not in /tmp, which is small on many hosts.
    scratch = os.path.join(environment.folder, ".scratch")
    os.mkdir(scratch)
    wheelhouse = work.params["wheelhouse"]
    command = [environment.python, "-I", os.path.join(work.params["pip"], "pip"), "install"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-compile", "--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--progress-bar", "off", "--requirement", requirements]
    command += ["--no-index", "--find-links", wheelhouse] if wheelhouse else []
    done = run(command, work.held, _pip_environment(work.params, scratch))
    if done.returncode:
        source = f"the folder {wheelhouse}" if wheelhouse else "the package index"
        known = {"source": source, "python": work.python, "folder": environment.folder}
        errors = done.stderr.decode(errors="replace")
        causes = [text for pattern, text in CAUSES if re.search(pattern, errors)]
        killed = "it was killed, perhaps because memory was short. Run again"
        causes.append(killed if done.returncode < 0 else "see its last lines")
        raise SetupError(
            f"pip could not install {environment.requirements} ({ending(done.returncode)}):"
            f" {causes[0].format(**known)}. No link was changed.\n{tail(done.stderr)}"
        )
    # With all cores, where pip takes one. A file that is no Python of this version stays as it is.
    compile_all = [environment.python, "-I", "-m", "compileall", "-qq", "-j", "0"]
    run([*compile_all, environment.packages(work.python)], work.held)
    shutil.rmtree(scratch)


def _pip_environment(params: Dict[str, Any], scratch: str) -> Dict[str, Optional[str]]:
    """What pip's environment has to differ in; None removes a variable."""
    changes: Dict[str, Optional[str]] = {"TMPDIR": scratch, "PIP_USER": "0"}
    changes.update(dict.fromkeys(("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"), None))
    if params["wheelhouse"]:  # then nothing else: an index in pip.conf may be out of reach
        changes = dict.fromkeys((name for name in os.environ if name.startswith("PIP_")), None)
        changes.update(TMPDIR=scratch, PIP_CONFIG_FILE=os.devnull)
    elif params["index_url"]:
        changes["PIP_INDEX_URL"] = params["index_url"]
    return changes
