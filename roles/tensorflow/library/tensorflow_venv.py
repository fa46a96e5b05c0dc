#!/usr/bin/python
"""Ansible module: give a host a virtual environment with the locked TensorFlow.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_venv
short_description: Give a host a virtual environment with the locked TensorFlow
description:
  - Makes C(ROOT/venvs/tensorflow-VERSION-VARIANT-pyX.Y-HASH) from a lock file with hashes, checks
    that what it has to bring can be imported, and then switches the link C(ROOT/venv) to it in one
    step. A job that runs keeps the environment that it was started with.
  - All of it happens under a lock file on the host. Of two ranks on one machine the second waits
    and then finds the work done.
  - An environment is finished when its marker file is there, which is written last. A half-made
    one is removed and made again.
  - Neither root nor ensurepip (Debian's python3-venv) is needed on the host. The action plugin of
    the same name sends pip and the lock file, and only to a host that lacks something.
options:
  root:
    description: Folder of the environments and of the link, on the host. C(~) is expanded there.
    type: path
    required: true
  python:
    description: The host's Python, a name on its PATH or a path.
    type: str
    default: python3
  supported_python:
    description: Oldest and newest Python (X.Y) that the locked TensorFlow has wheels for.
    type: list
    elements: str
    required: true
  variant:
    description: Which lock to use. V(auto) takes V(gpu) where the host has an NVIDIA device.
    type: str
    choices: [auto, cpu, gpu]
    default: auto
  locks:
    description:
      - Lock files on the control node, at most one for each variant.
      - The action plugin replaces each path by a dictionary of what the file locks, with the keys
        C(path), C(variant), C(version), C(sha256) and C(imports), the modules that must be
        importable. The first of them carries the version.
    type: list
    elements: raw
    required: true
  wheelhouse:
    description: Folder with wheels on the host, used in place of an index. Empty for an index.
    type: path
    default: ""
  index_url:
    description:
      - Package index. Empty leaves it to pip's own configuration on the host.
      - Handed to pip by its environment, so that no password stands in a process list.
    type: str
    default: ""
  pip_zip:
    description:
      - Archive on the host with the package C(pip). Set by the action plugin.
      - Without it the module only looks, as in check mode.
    type: path
  lock_file:
    description: The lock file on the host. Set by the action plugin.
    type: path
attributes:
  check_mode:
    description: Reports what would be done, with the same checks, and changes nothing.
    support: full
  diff_mode:
    description: Shows where the link points before and after.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Make the environment from the role's own locks
  tensorflow_venv:
    root: ~/train
    supported_python: ["3.10", "3.13"]
    locks: [cpu.txt, gpu.txt]

- name: Make it without a network, from wheels on the host
  tensorflow_venv:
    root: ~/train
    supported_python: ["3.10", "3.13"]
    locks: [cpu.txt, gpu.txt]
    variant: cpu
    wheelhouse: /srv/wheels
"""

RETURN = r"""
version:
  description: The locked version of TensorFlow.
  type: str
  returned: success
  sample: 2.21.0
variant:
  description: The variant that the host has, V(cpu) or V(gpu).
  type: str
  returned: success
  sample: cpu
venv:
  description: The environment's folder on the host.
  type: str
  returned: success
link:
  description: The link that points to it.
  type: str
  returned: success
python_version:
  description: Version of the host's Python.
  type: str
  returned: success
  sample: 3.11.2
installed:
  description: Whether packages were installed (in check mode, would be).
  type: bool
  returned: success
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

MARKER = "tensorflow-venv.json"
#: Either of them shows an NVIDIA driver.
NVIDIA_SIGNS = ("/dev/nvidia0", "/proc/driver/nvidia/version")
#: Free space that an installation needs, in MB (10^6 bytes), and what the downloaded wheels take
#: beside it until they are unpacked. Measured: cpu 1890 and 400, gpu 6940 and 3340.
INSTALLED_MB = {"cpu": 2100, "gpu": 7400}
DOWNLOAD_MB = {"cpu": 500, "gpu": 3600}
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0
#: Longest import of the new environment, in seconds: its files are cold, perhaps on NFS.
IMPORT_LIMIT_S = 900.0
#: Lines of a program's standard error that go into a message.
TAIL_LINES = 10

PROBE = """
import importlib.util, json, platform, sys
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "has_venv": importlib.util.find_spec("venv") is not None,
    "system": " ".join((platform.system(), platform.machine()) + platform.libc_ver()),
}))
"""
ACCEPT = """
import importlib, sys
print([importlib.import_module(name) for name in sys.argv[1:]][0].__version__)
"""


class SetupError(Exception):
    """What the host cannot do, with the limit and the remedy; the module's ``msg``."""


class Lock(NamedTuple):
    """One lock file, as the action plugin has read it."""

    path: str
    variant: str
    version: str
    sha256: str
    imports: List[str]


class Interpreter(NamedTuple):
    """The host's Python."""

    executable: str
    version: str
    has_venv: bool
    system: str

    @property
    def release(self) -> Tuple[int, ...]:
        """Major and minor version, e.g. ``(3, 11)``."""
        return tuple(int(part) for part in self.version.split(".")[:2])


class Place(NamedTuple):
    """Where the environment lies, and what of it is there."""

    venv: str
    link: str
    lock: Lock

    @property
    def python(self) -> str:
        return os.path.join(self.venv, "bin", "python")

    def finished(self) -> bool:
        """Whether every package is there, and the Python that it was made from still is."""
        return self._marker() is not None and os.access(self.python, os.X_OK)

    def accepted(self) -> bool:
        """Whether all that has to be importable was imported once."""
        marker = self._marker() or {}
        return set(self.lock.imports) <= set(marker.get("imports", []))

    def linked(self) -> bool:
        return os.path.islink(self.link) and self.target() == os.path.realpath(self.venv)

    def ready(self) -> bool:
        return self.finished() and self.accepted() and self.linked()

    def target(self) -> Optional[str]:
        """Where the link points, None where there is none."""
        return os.path.realpath(self.link) if os.path.islink(self.link) else None

    def write_marker(self, python: str) -> None:
        marker = {
            "version": self.lock.version,
            "variant": self.lock.variant,
            "requirements_sha256": self.lock.sha256,
            "python": python,
            "imports": self.lock.imports,
        }
        path = os.path.join(self.venv, MARKER)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump(marker, stream, indent=2)
            stream.write("\n")
        os.replace(path + ".new", path)

    def switch_link(self) -> None:
        """Point the link to the environment, in one step."""
        new = f"{self.link}.{os.getpid()}"
        if os.path.lexists(new):
            os.unlink(new)
        os.symlink(os.path.relpath(self.venv, os.path.dirname(self.link)), new)
        os.replace(new, self.link)

    def _marker(self) -> Optional[Dict[str, Any]]:
        try:
            with open(os.path.join(self.venv, MARKER), encoding="utf-8") as stream:
                marker = json.load(stream)
        except (OSError, ValueError):
            return None
        same = isinstance(marker, dict) and marker.get("requirements_sha256") == self.lock.sha256
        return marker if same else None


def choose_lock(locks: List[Dict[str, Any]], variant: str) -> Lock:
    """The lock for this host; a single one is for every host that does not ask for the other."""
    by_variant = {entry["variant"]: Lock(**entry) for entry in locks}
    if variant == "auto":
        if len(by_variant) == 1:
            return next(iter(by_variant.values()))
        variant = "gpu" if any(os.path.exists(path) for path in NVIDIA_SIGNS) else "cpu"
    if variant not in by_variant:
        offered = ", ".join(f"{lock.path} ({lock.variant})" for lock in by_variant.values())
        raise SetupError(
            f"tensorflow_variant is {variant}, but the lock is {offered}. Set tensorflow_variant to"
            f" auto, or tensorflow_requirements to a lock for {variant}."
        )
    return by_variant[variant]


def examine_python(command: str, supported: List[str], lock: Lock) -> Interpreter:
    """Find out what the host's Python is, and whether it will do."""
    if len(supported) != 2 or not all(re.fullmatch(r"\d+\.\d+", limit) for limit in supported):
        raise SetupError(
            f"tensorflow_python_supported is {supported}: write the oldest and the newest Python,"
            ' such as ["3.10", "3.13"].'
        )
    oldest, newest = (tuple(int(part) for part in limit.split(".")) for limit in supported)
    limits = f"{supported[0]} to {supported[1]}"
    remedy = f"Install Python {limits} and set tensorflow_python to it{_others(oldest, newest)}."
    program = shutil.which(os.path.expanduser(command))
    if program is None:
        raise SetupError(
            f"tensorflow_python: there is no program {command!r} on this host. {remedy}"
        )
    done = subprocess.run([program, "-I", "-c", PROBE], capture_output=True, check=False)
    try:
        python = Interpreter(**json.loads(done.stdout))
    except (ValueError, TypeError):
        raise SetupError(
            f"tensorflow_python: {program} does not answer as a Python 3 (exit code"
            f" {done.returncode}). {remedy}\n{_tail(done.stderr)}"
        ) from None
    if not oldest <= python.release <= newest:
        raise SetupError(
            f"tensorflow_python: {program} is Python {python.version}; TensorFlow {lock.version}"
            f" needs {limits}. {remedy}"
        )
    if not python.has_venv:
        raise SetupError(
            f"tensorflow_python: {program} has no module venv, which is part of Python's standard"
            " library. Install the complete one (Debian: python3, not python3-minimal), or set"
            " tensorflow_python to another."
        )
    return python


def _others(oldest: Tuple[int, ...], newest: Tuple[int, ...]) -> str:
    """The fitting interpreters on the PATH, as a part of a sentence."""
    minors = range(oldest[1], newest[1] + 1)
    found = [shutil.which(f"python{oldest[0]}.{minor}") for minor in minors]
    there = ", ".join(path for path in found if path)
    return f" (this host has {there})" if there else ""


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
    """Refuse an installation that would fill the disk."""
    variant = place.lock.variant
    need_mb = INSTALLED_MB[variant] + (0 if wheelhouse else DOWNLOAD_MB[variant])
    path = place.venv
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    disk = os.statvfs(path)
    have_mb = disk.f_bavail * disk.f_frsize // 10**6
    if have_mb < need_mb:
        raise SetupError(
            f"Too little space for TensorFlow {place.lock.version} ({variant}): the"
            f" filesystem of {path} has {have_mb} MB free, {need_mb} MB are needed. Free"
            f" {need_mb - have_mb} MB (old environments lie in {os.path.dirname(place.venv)}), or"
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


def _busy(path: str) -> bool:
    """Whether somebody installs now, and so uses up space that is counted already."""
    try:
        with open(path, "r+", encoding="utf-8") as stream:  # NFS locks no file opened for reading
            return not _take(stream.fileno())
    except FileNotFoundError:
        return False


def install(place: Place, python: Interpreter, params: Dict[str, Any], held: int) -> None:
    """Make the environment and put the locked packages into it; a half-made one is removed.

    Raises:
        SetupError: with the end of pip's standard error.
    """
    with open(params["lock_file"], "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() != place.lock.sha256:
            raise SetupError(f"{place.lock.path} was changed during the run. Run again.")
    done = _run([python.executable, "-I", "-m", "venv", "--without-pip", place.venv], held)
    if done.returncode:
        raise SetupError(
            f"{python.executable} cannot make a virtual environment in {place.venv} (exit code"
            f" {done.returncode}). Install the complete Python (Debian: python3, not"
            f" python3-minimal), or set tensorflow_python to another.\n{_tail(done.stderr)}"
        )
    # Wheels are unpacked beside the environment and not in /tmp, which is small on many hosts.
    scratch = os.path.join(place.venv, ".scratch")
    os.mkdir(scratch)
    command = [place.python, "-I", os.path.join(params["pip_zip"], "pip"), "install"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += ["--requirement", params["lock_file"]]
    if params["wheelhouse"]:
        command += ["--no-index", "--find-links", params["wheelhouse"]]
    done = _run(command, held, _pip_environment(params, scratch))
    if done.returncode:
        raise SetupError(_explain_pip(place, python, params, done))
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
    place: Place,
    python: Interpreter,
    params: Dict[str, Any],
    done: subprocess.CompletedProcess[bytes],
) -> str:
    """Say what pip's failure means here, and what helps."""
    errors = done.stderr.decode(errors="replace")
    source = "the folder " + params["wheelhouse"] if params["wheelhouse"] else "the package index"
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
    elif unreachable and not params["wheelhouse"]:
        cause = (
            "this host cannot reach the package index. Set tensorflow_index_url to one that it can"
            " reach, or tensorflow_wheelhouse to a folder with the wheels on the host"
        )
    elif untrusted and not params["wheelhouse"]:
        cause = (
            "pip does not trust the package index. Give it an https:// address, or make this host"
            " trust it (cert or trusted-host in its pip.conf)"
        )
    elif "No matching distribution found" in errors:
        cause = (
            f"{source} has no fitting wheel for Python {python.version} on {python.system}. Put it"
            " there, or use another source (tensorflow_index_url, tensorflow_wheelhouse)"
        )
    elif "No space left" in errors:
        cause = f"the filesystem of {place.venv} is full. Free space, and run again"
    elif done.returncode < 0:
        cause = "it was ended from outside, perhaps for want of memory. Run again"
    else:
        cause = "see its last lines"
    return (
        f"pip could not install {place.lock.path} ({_ending(done.returncode)}): {cause}. Nothing"
        f" was taken into use.\n{_tail(done.stderr)}"
    )


def accept(place: Place, held: int) -> None:
    """Import what the lock must bring; the first module has to show the locked version.

    Raises:
        SetupError: with the end of the interpreter's standard error.
    """
    names = ", ".join(place.lock.imports)
    command = [place.python, "-I", "-c", ACCEPT, *place.lock.imports]
    # The GPUs stay hidden: what runs on them now is not disturbed.
    quiet: Dict[str, Optional[str]] = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        done = _run(command, held, quiet, timeout=IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"The new environment did not import {names} within {IMPORT_LIMIT_S:.0f} s. Look at the"
            " load and the disk of this host, and run again."
        ) from None
    if done.returncode:
        illegal = ": this processor lacks instructions that TensorFlow needs, such as AVX"
        illegal = illegal if done.returncode == -signal.SIGILL else ""
        raise SetupError(
            f"The new environment cannot import {names} ({_ending(done.returncode)}{illegal}). It"
            f" was not taken into use. Mend what the last lines name, or change the lock"
            f" {place.lock.path}.\n{_tail(done.stderr)}"
        )
    version = (done.stdout.decode(errors="replace").split() or ["nothing"])[-1]
    if version != place.lock.version:
        raise SetupError(
            f"The new environment's {place.lock.imports[0]} calls itself {version}, the lock"
            f" {place.lock.path} has {place.lock.version}. It was not taken into use. Make the lock"
            " again."
        )


def _ending(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _run(
    command: List[str],
    held: int,
    changes: Optional[Dict[str, Optional[str]]] = None,
    timeout: Optional[float] = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that shares the lock, with a changed environment (None removes)."""
    merged: Dict[str, Optional[str]] = {**os.environ, **(changes or {})}
    environment = {name: value for name, value in merged.items() if value is not None}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=environment,
        pass_fds=(held,),
        timeout=timeout,
    )


def _tail(errors: bytes) -> str:
    """The last lines of a program's standard error; of warnings that repeat the last one."""
    lines = [""]
    for line in errors.decode(errors="replace").splitlines():
        if line.startswith("WARNING: ") and line[:18] == lines[-1][:18]:
            lines.pop()
        if line.strip():
            lines.append(line)
    return "\n".join(lines[1:][-TAIL_LINES:])


def ensure(place: Place, python: Interpreter, params: Dict[str, Any]) -> Tuple[bool, bool]:
    """Bring the environment about; returns whether something was changed, and installed."""
    folder = os.path.dirname(place.venv)
    os.makedirs(folder, exist_ok=True)
    with exclusive(os.path.join(folder, ".lock")) as held:
        if place.ready():
            return False, False
        installed = not place.finished()
        try:
            if installed:
                if os.path.lexists(place.venv):
                    shutil.rmtree(place.venv)
                check_space(place, params["wheelhouse"])
                install(place, python, params, held)
            if not (place.finished() and place.accepted()):
                accept(place, held)
                place.write_marker(python.version)
        except SetupError:
            if installed:
                shutil.rmtree(place.venv, ignore_errors=True)
            raise
        if not place.linked():
            place.switch_link()
    return True, installed


def run(params: Dict[str, Any], look_only: bool) -> Dict[str, Any]:
    """Do the module's work; returns its result.

    Raises:
        SetupError: for everything that a person has to mend.
        OSError: for a folder that cannot be written, among others.
    """
    if not os.path.isabs(params["root"]):
        raise SetupError(
            f"tensorflow_root is {params['root']!r}: write an absolute path, or one that begins"
            " with ~."
        )
    lock = choose_lock(params["locks"], params["variant"])
    python = examine_python(params["python"], params["supported_python"], lock)
    release = ".".join(str(part) for part in python.release)
    name = f"tensorflow-{lock.version}-{lock.variant}-py{release}-{lock.sha256:.12}"
    root = params["root"]
    place = Place(os.path.join(root, "venvs", name), os.path.join(root, "venv"), lock)
    before = place.target()
    changed, installed = not place.ready(), not place.finished()
    if changed:
        check_input(place, params["wheelhouse"])
        # Somebody who installs now, and what is half made, take up space that comes free again.
        lock_path = os.path.join(root, "venvs", ".lock")
        if installed and not os.path.lexists(place.venv) and not _busy(lock_path):
            check_space(place, params["wheelhouse"])
        if not look_only:
            changed, installed = ensure(place, python, params)
    return {
        "changed": changed,
        "installed": installed,
        "version": lock.version,
        "variant": lock.variant,
        "venv": place.venv,
        "link": place.link,
        "python_version": python.version,
        "diff": {
            "before_header": place.link,
            "after_header": place.link,
            "before": f"{before or 'no link'}\n",
            "after": f"{os.path.realpath(place.venv)}\n",
        },
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "python": {"type": "str", "default": "python3"},
            "supported_python": {"type": "list", "elements": "str", "required": True},
            "variant": {"type": "str", "choices": ["auto", "cpu", "gpu"], "default": "auto"},
            "locks": {"type": "list", "elements": "raw", "required": True},
            "wheelhouse": {"type": "path", "default": ""},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "pip_zip": {"type": "path"},
            "lock_file": {"type": "path"},
        },
        required_together=[("pip_zip", "lock_file")],
        supports_check_mode=True,
    )
    try:
        # pip hides passwords itself; this hides them in whatever else is said.
        module.no_log_values.update(check_index_url(module.params["index_url"]))
        result = run(module.params, module.check_mode or not module.params["pip_zip"])
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error}. tensorflow_root is {module.params['root']}: it must be a folder that"
            " this user may write to."
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
