"""Making an environment and putting locked packages into it, one installation at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional
from urllib.parse import urlsplit

from .interpreter import Interpreter
from .places import Environment, Place
from .programs import SetupError, ending, run, tail

#: Free space that an installation needs, in MB (10^6 bytes), and what the downloaded wheels take
#: beside it until they are unpacked. Measured: cpu 1890 and 400, gpu 6940 and 3340.
INSTALLED_MB = {"cpu": 2100, "gpu": 7400}
DOWNLOAD_MB = {"cpu": 500, "gpu": 3600}
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0


class Work(NamedTuple):
    """What every step of an installation needs.

    Attributes:
        python: the host's.
        params: the module's parameters.
        held: descriptor of the lock.
    """

    python: Interpreter
    params: Dict[str, Any]
    held: int


@contextmanager
def exclusive(path: str) -> Iterator[int]:
    """Hold the lock file; yields its descriptor.

    Children that inherit the descriptor hold the lock too: a pip that outlives a killed module
    still keeps others away.
    """
    with open(path, "a", encoding="utf-8") as stream:
        deadline = time.monotonic() + LOCK_WAIT_S
        while not _take(stream.fileno()):
            if time.monotonic() > deadline:
                raise SetupError(
                    f"Another installation on this host has held {path} for"
                    f" {LOCK_WAIT_S / 60:.0f} minutes. Look what it does (fuser -v {path}), end it,"
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


def busy(path: str) -> bool:
    """Whether somebody installs now, and so uses up space that is counted already."""
    try:
        with open(path, "r+", encoding="utf-8") as stream:  # NFS locks no file opened for reading
            return not _take(stream.fileno())
    except FileNotFoundError:
        return False


def check_input(place: Place, wheelhouse: str) -> None:
    """Refuse what would fail later, before anything is changed."""
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
    path = place.base.folder
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    disk = os.statvfs(path)
    have_mb = disk.f_bavail * disk.f_frsize // 10**6
    if have_mb < need_mb:
        raise SetupError(
            f"Too little space for TensorFlow {place.lock.version} ({variant}): the"
            f" filesystem of {path} has {have_mb} MB free, {need_mb} MB are needed. Free"
            f" {need_mb - have_mb} MB (old environments lie in {place.folder}), or"
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
    """Make an environment and put the locked packages into it; what was there before goes.

    Args:
        environment: the one to make.
        requirements: the lock file on this host.
        work: see there.
        below: an environment whose packages the new one finds, too.

    Raises:
        SetupError: with the end of pip's standard error.
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
    # Wheels are unpacked beside the environment and not in /tmp, which is small on many hosts.
    scratch = os.path.join(environment.folder, ".scratch")
    os.mkdir(scratch)
    command = [environment.python, "-I", os.path.join(work.params["pip_zip"], "pip"), "install"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += ["--requirement", requirements]
    if work.params["wheelhouse"]:
        command += ["--no-index", "--find-links", work.params["wheelhouse"]]
    done = run(command, work.held, _pip_environment(work.params, scratch))
    if done.returncode:
        raise SetupError(_explain_pip(environment, work, done))
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


def _explain_pip(
    environment: Environment, work: Work, done: subprocess.CompletedProcess[bytes]
) -> str:
    """Say what pip's failure means here, and what helps."""
    errors = done.stderr.decode(errors="replace")
    wheelhouse = work.params["wheelhouse"]
    source = "the folder " + wheelhouse if wheelhouse else "the package index"
    unreachable = re.search(
        r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|NameResolutionError"
        r"|Network is unreachable|Connection refused|name resolution",
        errors,
    )
    untrusted = re.search(r"not a trusted or secure host|CERTIFICATE_VERIFY_FAILED", errors)
    if "DO NOT MATCH THE HASHES" in errors:
        cause = (
            f"{source} has another file than the one that is locked. Use an unchanged source"
            " (tensorflow_index_url, tensorflow_wheelhouse)"
        )
    elif unreachable and not wheelhouse:
        cause = (
            "this host cannot reach the package index. Set tensorflow_index_url to one that it can"
            " reach, or tensorflow_wheelhouse_source to a folder with the wheels on the control"
            " node (playbooks/wheelhouse.yml makes it)"
        )
    elif untrusted and not wheelhouse:
        cause = (
            "pip does not trust the package index. Give it an https:// address, or make this host"
            " trust it (cert or trusted-host in its pip.conf)"
        )
    elif "No matching distribution found" in errors:
        cause = (
            f"{source} has no fitting wheel for Python {work.python.version} on"
            f" {work.python.system}. Put it there, or use another source (tensorflow_index_url,"
            " tensorflow_wheelhouse)"
        )
    elif "No space left" in errors:
        cause = f"the filesystem of {environment.folder} is full. Free space, and run again"
    elif done.returncode < 0:
        cause = "it was ended from outside, perhaps for want of memory. Run again"
    else:
        cause = "see its last lines"
    return (
        f"pip could not install {environment.requirements} ({ending(done.returncode)}): {cause}."
        f" Nothing was taken into use.\n{tail(done.stderr)}"
    )
