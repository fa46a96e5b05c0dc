#!/usr/bin/python
"""Ansible module: a virtual environment with locked packages.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_environment
short_description: Create an environment from a lock file, and test it
description:
  - Creates an environment with uv, installs the packages of a lock file into it, imports them, and
    then writes the environment's marker. An environment without a marker is created again.
  - Creates only one environment of a folder at a time. A second call for the same environment
    waits, and then has nothing to do.
  - If the driver shows GPUs, counts those that the framework sees. The caller decides whether they
    are enough.
options:
  path:
    description: Folder of the environment.
    type: path
    required: true
  requirements:
    description: The lock file on the host. It is moved into the environment.
    type: path
    required: true
  lock:
    description: The contents of the lock file, see the filter C(tensorflow_locks).
    type: dict
    required: true
    options:
      path:
        description: The file on the control node, for messages.
        type: str
        required: true
      sha256:
        description: The SHA-256 of the file.
        type: str
        required: true
      framework:
        description: C(tensorflow), C(jax), or C(none) for an environment without packages.
        type: str
        choices: [tensorflow, jax, none]
        required: true
      version:
        description: The version that the first of the imported modules must have.
        type: str
        required: true
      variant:
        description: The variant of the framework, for the marker.
        type: str
        required: true
      imports:
        description: Modules that must be importable.
        type: list
        elements: str
        required: true
  base:
    description: Environment whose packages this one also finds. Empty for the framework's own.
    type: path
    default: ""
  python:
    description: The interpreter from which the environment is created.
    type: path
    required: true
  python_version:
    description: The version of this interpreter.
    type: str
    required: true
  uv:
    description: The program uv on the host.
    type: path
    required: true
  driver:
    description: >-
      The driver's C(version) and its number of C(gpus). If omitted, no GPUs are counted.
    type: dict
  require_gpus:
    description: Whether to test an environment again in which the framework saw fewer GPUs.
    type: bool
    default: true
  wheelhouse:
    description: Folder with wheels on the host, used instead of an index. Empty for an index.
    type: path
    default: ""
  index_url:
    description: >-
      Package index, passed to uv in its environment. Empty for the one that the host's user has
      configured for uv or pip.
    type: str
    default: ""
attributes:
  check_mode:
    description: Reports whether the environment would be created or tested, and changes nothing.
    support: full
  diff_mode:
    description: Shows a new environment.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Create the environment from wheels on the host
  tensorflow_ansible.cluster.tensorflow_environment:
    path: /home/ada/train/venvs/tensorflow-2.21.0-cpu-py3.11-0123456789ab
    requirements: /home/ada/cpu.txt
    lock: "{{ (['/home/me/cpu.txt'] | tensorflow_locks('tensorflow'))[0] }}"
    python: /usr/bin/python3.11
    python_version: 3.11.2
    uv: /home/ada/.local/bin/uv
    wheelhouse: /srv/wheels
"""

RETURN = r"""
marker:
  description: >-
    The environment's marker. For a framework's environment, it contains the conditions of the test
    (C(trial)), the number of GPUs that the framework saw or null (C(gpus)), and whether CUDA
    libraries could not be loaded (C(missing_libraries)).
  type: dict
  returned: success
errors:
  description: The last lines about GPUs that the framework printed, if it was tested.
  type: list
  elements: str
  returned: success
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.tensorflow_setup import (
    environments,
    index_settings,
)
from ..module_utils.tensorflow_setup.environments import (
    SetupError,
)

#: Maximum seconds to import a new environment: its files are not cached, and may be on NFS.
IMPORT_LIMIT_S = 900.0
#: Causes of errors of uv by texts in its standard error, with remedies; the first match counts.
CAUSES = [
    (
        ("Hash mismatch",),
        "{source} contains a file that differs from the locked one. Use an unchanged source "
        "(tensorflow_index_url, tensorflow_wheelhouse; playbooks/wheelhouse.yml repairs the "
        "folder tensorflow_wheelhouse_source)",
    ),
    (
        ("invalid peer certificate", "certificate verify"),
        "this host does not trust the certificate of the package index. Add the index's "
        "certificate authority to the host's certificates, or set the file that contains it "
        "(SSL_CERT_FILE in the environment, cert in pip.conf)",
    ),
    (
        ("Failed to fetch", "error sending request", "dns error", "tcp connect error", "timed out"),
        "this host cannot reach the package index. Set tensorflow_index_url to one that it can"
        " reach, or tensorflow_wheelhouse_source to a folder with the wheels on the control node"
        " (playbooks/wheelhouse.yml creates it)",
    ),
    (
        ("No solution found",),
        "{source} has no compatible wheel for Python {python} on {system}. Add the wheel, or "
        "use another source (tensorflow_index_url, tensorflow_wheelhouse)",
    ),
    (
        ("No space left",),
        "the filesystem of {folder} is full. Free up space, and run the playbook again",
    ),
]
#: Texts that show that the framework could not load a CUDA library.
MISSING_LIBRARY = (
    b"dlopen",
    b"Could not load dynamic library",
    b"cannot open shared object",
    b"Unable to load",  # JAX
)
ABOUT_GPUS = re.compile(rb"cuda|cudnn|nccl|gpu|nvidia|dlopen|dynamic library", re.I)
#: Environment variables of a trial that counts GPUs: missing libraries are reported as information,
#: not as errors, and JAX does not allocate the GPUs' memory.
COUNTING = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "JAX_PLATFORMS": "",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
#: GPUs are hidden unless they are counted, so as not to disturb processes on them.
HIDING = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
TRIAL = """
import importlib, json, sys

def tensorflow_gpus(module):
    return len(module.config.list_physical_devices("GPU"))

def jax_gpus(module):
    try:
        return len(module.local_devices(backend="gpu"))
    except RuntimeError as error:  # no GPU can be used
        print(error, file=sys.stderr)
        return 0

how, *names = sys.argv[1:]
modules = [importlib.import_module(name) for name in names]
count = jax_gpus if names[0] == "jax" else tensorflow_gpus
gpus = count(modules[0]) if how == "count" else None
print(json.dumps({"version": modules[0].__version__, "gpus": gpus}))
"""


class Environment:
    """The environment that the module's parameters request, while its folder is locked.

    Args:
        held: descriptor of the lock, which started programs also hold.
    """

    def __init__(self, params: Dict[str, Any], held: int = -1) -> None:
        self.params, self.held = params, held
        self.lock: Dict[str, Any] = params["lock"]
        self.path, self.base = params["path"], params["base"]
        self.python = os.path.join(self.path, "bin", "python")
        #: The modules and the driver with which the environment must be tried, as in its marker.
        self.trial = {"imports": self.lock["imports"], "driver": params["driver"]}

    def marker(self) -> Dict[str, Any]:
        """Return the environment's marker; empty if it is unfinished or from another lock file."""
        marker = environments.usable_marker(self.path)
        return marker if marker.get("requirements_sha256") == self.lock["sha256"] else {}

    def is_accepted(self) -> bool:
        """Return whether the environment was tried with the host's driver and saw enough GPUs.

        One on top of another environment only has to be finished.
        """
        marker, driver = self.marker(), self.params["driver"]
        if self.base or not marker:
            return bool(marker)
        too_few = (
            driver and self.params["require_gpus"] and (marker.get("gpus") or 0) < driver["gpus"]
        )
        return marker.get("trial") == self.trial and not too_few

    def install(self) -> None:
        """Create the environment and install the packages of its lock file."""
        requirements = self.params["requirements"]
        if not os.path.isfile(requirements):
            raise SetupError(
                f"{self.path} was removed by another run in the meantime. Run the playbook again."
            )
        with open(requirements, "rb") as stream:
            if hashlib.sha256(stream.read()).hexdigest() != self.lock["sha256"]:
                raise SetupError(
                    f"{self.lock['path']} was changed during the run. Run the playbook again."
                )
        environments.discard(self.path)
        command = ["venv", "--no-project", "--no-config", "--python", self.params["python"]]
        done = self._uv([*command, self.path], index_settings.without_uv())
        if done.returncode:
            raise SetupError(
                f"{self.params['python']} cannot create a virtual environment in {self.path}"
                f" ({ending(done.returncode)}). Fix the error below, or set tensorflow_python to"
                f" another interpreter.\n{tail(done.stderr)}"
            )
        # Wheels are unpacked next to the packages, not in /tmp, which is small on many hosts. Those
        # of scripts are kept for the next script; a framework's would only take up space.
        scratch = os.path.join(self.path, ".scratch")
        os.mkdir(scratch)
        cache, excluded = os.path.join(scratch, "cache"), os.path.join(scratch, "excluded.txt")
        if self.base:
            cache = os.path.join(os.path.dirname(self.path), environments.CACHE)
            self._put_on_top()
        with open(excluded, "w", encoding="utf-8") as names:
            names.writelines(f"{name}\n" for name in self._distributions_of_base())
        command = ["pip", "install", "--python", self.python, "--requirement", requirements]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
        command += ["--excludes", excluded, "--compile-bytecode", "--cache-dir", cache]
        options, settings = self._source()
        done = self._uv([*command, *options], {**settings, "TMPDIR": scratch})
        if done.returncode:
            raise SetupError(
                f"uv could not install {self.lock['path']} ({ending(done.returncode)}):"
                f" {self._cause(done)}. No link was changed.\n{tail(done.stderr)}"
            )
        shutil.rmtree(scratch)

    def _packages(self, folder: str) -> str:
        """Return the folder of an environment's packages."""
        series = ".".join(self.params["python_version"].split(".")[:2])
        return os.path.join(folder, "lib", f"python{series}", "site-packages")

    def _put_on_top(self) -> None:
        """Make the environment find the packages of its base, after its own."""
        if not environments.usable_marker(self.base):
            raise SetupError(
                f"{self.base} was removed by another run in the meantime. Run the playbook again."
            )
        # Python runs this line when it starts. The path is absolute, because a relative one would
        # lead elsewhere through the link of an environment.
        line = f"import site; site.addsitedir({self._packages(self.base)!r})\n"
        path = os.path.join(self._packages(self.path), "tensorflow.pth")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(line)

    def _distributions_of_base(self) -> List[str]:
        """Return the names of the packages that the environment finds in its base."""
        entries = os.listdir(self._packages(self.base)) if self.base else []
        return sorted(
            name.partition("-")[0].replace("_", "-")
            for name in entries
            if name.endswith(".dist-info")
        )

    def _source(self) -> Tuple[List[str], Dict[str, str]]:
        """Return the options and the environment with which uv uses the right package source."""
        wheelhouse = self.params["wheelhouse"]
        if wheelhouse:  # no index, because it may be out of reach
            options = ["--no-index", "--find-links", wheelhouse, "--offline", "--no-config"]
            return options, index_settings.without_uv()
        # The hashes decide which file is right, whatever its index.
        options = ["--index-strategy", "unsafe-best-match"]
        return options, index_settings.of_host(self.params["index_url"])

    def _cause(self, done: subprocess.CompletedProcess[bytes]) -> str:
        """Return the cause of an error of uv, and the remedy."""
        errors = done.stderr.decode(errors="replace")
        killed = "it was killed, perhaps because the host ran out of memory. Run the playbook again"
        causes = [text for signs, text in CAUSES if any(sign in errors for sign in signs)]
        causes.append(killed if done.returncode < 0 else "see its output below")
        wheelhouse = self.params["wheelhouse"]
        return causes[0].format(
            source=f"the folder {wheelhouse}" if wheelhouse else "the package index",
            python=self.params["python_version"],
            system=" ".join((platform.system(), platform.machine(), *platform.libc_ver())),
            folder=self.path,
        )

    def _uv(self, words: List[str], settings: Dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        """Run uv with plain output and without Python downloads."""
        options = ["--quiet", "--no-progress", "--color", "never", "--no-python-downloads"]
        uv = self.params["uv"]
        try:
            return run([uv, *words, *options], self.held, settings)
        except OSError as error:
            raise SetupError(
                f"uv does not run on this host ({error}); {uv} was sent from the control node. Set"
                " tensorflow_uv to the uv program for Linux on x86_64, from its releases or PyPI."
            ) from None

    def accept(self) -> List[str]:
        """Try the environment and write its marker, which completes it.

        The environment is complete even if the framework sees too few GPUs, because a new driver
        can fix that.

        Returns:
            The framework's output about GPUs.
        """
        gpus, errors = self._try_imports() if self.lock["imports"] else (None, b"")
        names = ("framework", "version", "variant")
        marker: Dict[str, Any] = {name: self.lock[name] for name in names}
        marker["python"] = self.params["python_version"]
        marker["requirements_sha256"] = self.lock["sha256"]
        if self.base:
            marker["base"] = os.path.basename(self.base)
        else:
            marker.update(trial=self.trial, gpus=gpus)
            marker["missing_libraries"] = any(sign in errors for sign in MISSING_LIBRARY)
        path = os.path.join(self.path, environments.MARKER)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump(marker, stream, indent=2)
            stream.write("\n")
        os.replace(path + ".new", path)
        lines = errors.splitlines()
        relevant = [line for line in lines if ABOUT_GPUS.search(line)] or lines
        return tail(b"\n".join(relevant)).splitlines()

    def _try_imports(self) -> Tuple[Optional[int], bytes]:
        """Import the modules of the lock; the first one must have the locked version.

        Returns:
            The number of GPUs, if they are to be counted, and the output.
        """
        lock, count = self.lock, self.params["driver"] is not None
        names = ", ".join(lock["imports"])
        command = [self.python, "-I", "-c", TRIAL, "count" if count else "hide", *lock["imports"]]
        environment = {**os.environ, **(COUNTING if count else HIDING)}
        environment["KERAS_BACKEND"] = lock["framework"]
        try:
            # Keras writes its settings into a folder, which is the home directory by default.
            with tempfile.TemporaryDirectory(dir=self.path) as folder:
                environment["KERAS_HOME"] = folder
                done = run(command, self.held, environment, IMPORT_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise SetupError(
                f"The new environment did not import {names} within {IMPORT_LIMIT_S:.0f} s. "
                "Check the load and the disk of this host, and run the playbook again."
            ) from None
        if done.returncode:
            cause = "Fix the error below"
            if done.returncode == -signal.SIGILL:
                cause = "Use another host: this processor lacks instructions, such as AVX"
            raise SetupError(
                f"The new environment cannot import {names} ({ending(done.returncode)}). No link"
                f" was changed. {cause}, or change the lock {lock['path']}.\n{tail(done.stderr)}"
            )
        answer: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if answer["version"] != lock["version"]:
            raise SetupError(
                f"The new environment has {lock['imports'][0]} {answer['version']}, but the lock "
                f"{lock['path']} has {lock['version']}. No link was changed. Create the lock "
                "again."
            )
        return answer["gpus"], done.stderr


def run(
    command: List[str],
    held: int,
    environment: Dict[str, str],
    timeout: Optional[float] = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that also holds the lock, whose descriptor is ``held``."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=environment,
        pass_fds=(held,),
        timeout=timeout,
    )


def ending(returncode: int) -> str:
    """Return how a program ended, such as ``exit code 1`` or ``signal 9``."""
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def tail(errors: bytes) -> str:
    """Return the last lines of a program's standard error for a message."""
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-10:])


def ensure(params: Dict[str, Any]) -> Dict[str, Any]:
    """Create the environment if it is missing, and try it if it was not accepted.

    On a SetupError, a new environment is removed and an old one is unchanged.
    """
    path, requirements = params["path"], params["requirements"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with environments.exclusive(os.path.dirname(path)) as held:
        environment = Environment(params, held)
        is_new, changed = not environment.marker(), not environment.is_accepted()
        errors: List[str] = []
        try:
            if is_new:
                environment.install()
            if changed:
                errors = environment.accept()
        except SetupError:
            if is_new:
                environments.discard(path)
            raise
        if os.path.lexists(requirements):
            os.replace(requirements, os.path.join(path, "requirements.txt"))
        # Recently created or requested environments are kept, see tensorflow_cleanup.
        for folder in filter(None, (path, params["base"])):
            os.utime(os.path.join(folder, environments.MARKER))
        marker = environment.marker()
    diff = {"before": "", "after": f"{path}\n"} if is_new else {}
    return {"changed": changed, "marker": marker, "errors": errors, "diff": diff}


def check(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the result of `ensure` without changing anything."""
    environment = Environment(params)
    marker = environment.marker()
    diff = {} if marker else {"before": "", "after": f"{params['path']}\n"}
    changed = not environment.is_accepted()
    return {"changed": changed, "marker": marker, "errors": [], "diff": diff}


def main() -> None:
    """Run as an Ansible module."""
    text = {"type": "str", "required": True}
    path = {"type": "path", "required": True}
    imports = {"type": "list", "elements": "str", "required": True}
    lock = {**dict.fromkeys(("path", "sha256", "version", "variant"), text), "imports": imports}
    lock["framework"] = {**text, "choices": ["tensorflow", "jax", "none"]}
    module = AnsibleModule(
        argument_spec={
            "path": path,
            "requirements": path,
            "lock": {"type": "dict", "required": True, "options": lock},
            "base": {"type": "path", "default": ""},
            "python": path,
            "python_version": text,
            "uv": path,
            "driver": {"type": "dict"},
            "require_gpus": {"type": "bool", "default": True},
            "wheelhouse": {"type": "path", "default": ""},
            "index_url": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    # uv masks passwords itself; this masks them everywhere else.
    module.no_log_values.update(filter(None, [urlsplit(params["index_url"]).password]))
    try:
        result = check(params) if module.check_mode else ensure(params)
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error}. {os.path.dirname(params['path'])} must be a folder that this user may"
            " write to (tensorflow_root)."
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
