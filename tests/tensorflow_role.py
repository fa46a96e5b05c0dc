"""What the tests of the role ``tensorflow`` share; a pytest plugin.

No TensorFlow is downloaded: a tiny wheel that calls itself ``tensorflow-cpu`` stands for it.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests import host_roles
from tests.conftest import REPOSITORY, environment

ROLE = REPOSITORY / "roles" / "tensorflow"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"

module = host_roles.load(ROLE / "library" / "tensorflow_venv.py")
lock_plugin = host_roles.load(ROLE / "lookup_plugins" / "tensorflow_lock.py")
pip_plugin = host_roles.load(ROLE / "lookup_plugins" / "tensorflow_pip.py")
acceptance, cleanup, gpus, installation = (
    host_roles.part(f"tensorflow_setup.{name}")
    for name in ("acceptance", "cleanup", "gpus", "installation")
)


def make_wheel(
    folder: Path, version: str, body: str = "", name: str = "tensorflow-cpu", package: str = ""
) -> Path:
    """A wheel of a distribution with one module, ``tensorflow`` by default."""
    folder.mkdir(parents=True, exist_ok=True)
    package = package or ("tensorflow" if name.startswith("tensorflow") else name)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        f"{package}.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def make_lock(path: Path, *wheels: Path) -> Path:
    """A lock file of the wheels."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n")
    path.write_text("".join(lines))
    return path


def with_lock(params: dict[str, Any], lock: Path) -> dict[str, Any]:
    """The module's parameters with another lock."""
    described = lock_plugin.describe(str(lock), False, None)
    return {**params, "locks": [described], "requirements": str(lock)}


def with_extra(params: dict[str, Any], lock: Path, name: str = "script") -> dict[str, Any]:
    """The module's parameters with packages on top."""
    described = lock_plugin.describe(str(lock), True, None)
    return {**params, "extra": described, "extra_requirements": str(lock), "environment": name}


@pytest.fixture(scope="session")
def pip_zip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The control node's pip, as hosts get it."""
    archive: str = pip_plugin.pack(tmp_path_factory.mktemp("pip"), "3.10.0")
    return archive


@pytest.fixture
def params(tmp_path: Path, pip_zip: str) -> dict[str, Any]:
    """Arguments for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    fixed = {"root": str(tmp_path / "root"), "python": sys.executable, "pip": pip_zip}
    lock = make_lock(tmp_path / "lock.txt", wheel)
    return with_lock({**fixed, "wheelhouse": str(wheel.parent)}, lock)


Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module in this process; returns its result."""

    def run(params: dict[str, Any], check_mode: bool = False) -> dict[str, Any]:
        arguments = {**params, "_ansible_check_mode": check_mode}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return run


def shown_version(link: str | Path, package: str = "tensorflow") -> str:
    """The version that an environment's interpreter finds."""
    command = [f"{link}/bin/python", "-c", f"import {package}; print({package}.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environments(root: str) -> list[str]:
    """The names of the environments that are there."""
    return sorted(entry.name for entry in Path(root, "venvs").iterdir() if entry.is_dir())


Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a playbook for two inventory hosts on this machine, with a lock of the stand-in."""
    lock = make_lock(tmp_path / "lock.txt", make_wheel(tmp_path / "wheels", "1.0"))
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
        "setup_roles": ["tensorflow"],
    }
    inventory = tmp_path / "hosts.json"
    hosts: dict[str, dict[str, str]] = {"worker-0": {}, "worker-1": {}}
    inventory.write_text(json.dumps({"worker": {"hosts": hosts, "vars": common}}))
    # The role alone, and on every inventory host, where setup.yml takes one of each machine.
    removal = {"ansible.builtin.import_role": {"name": "tensorflow", "tasks_from": "remove"}}
    plays: list[tuple[str, str, dict[str, Any]]] = [
        ("one", "worker-0", {"roles": ["tensorflow"]}),
        ("each", "all", {"roles": ["tensorflow"]}),
        ("remove", "worker-0", {"tasks": [removal]}),
    ]
    for name, pattern, what in plays:
        text = [{"hosts": pattern, "gather_facts": False, **what}]
        (tmp_path / f"{name}.yml").write_text(json.dumps(text))

    def run(*options: str, playbook: str = "one", **extra: Any) -> Any:
        path = tmp_path / f"{playbook}.yml"
        path = path if path.exists() else REPOSITORY / "playbooks" / f"{playbook}.yml"
        program = Path(sys.executable).with_name("ansible-playbook")
        variables = {"tensorflow_requirements": str(lock), **extra}
        return subprocess.run(
            [str(program), "-i", str(inventory), str(path), *options, "-e", json.dumps(variables)],
            cwd=REPOSITORY,
            env={**environment(), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "1000", "PIP_RETRIES": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def counts(output: str, word: str) -> list[int]:
    """A column of the recap, in the order of the hosts."""
    return [int(count) for count in re.findall(rf"^\S+\s+: ok=.*\b{word}=(\d+)", output, re.M)]


def install_without_pip(made: Any, requirements: str, work: Any, below: Any = None) -> None:
    """What the real function leaves behind, ten times faster."""
    packages, programs = Path(made.packages(work.python)), Path(made.folder, "bin")
    programs.mkdir(parents=True)
    interpreter = Path(sys.executable).resolve()
    (programs / "python").symlink_to(interpreter)
    Path(made.folder, "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    packages.mkdir(parents=True)
    for name, version in re.findall(r"(?m)^(\S+)==(\S+)", Path(requirements).read_text()):
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        zipfile.ZipFile(Path(work.params["wheelhouse"], wheel)).extractall(packages)
    if below is not None:
        line = f"import site; site.addsitedir({below.packages(work.python)!r})\n"
        (packages / "tensorflow.pth").write_text(line)


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module install without pip, for tests of what comes before and after."""
    monkeypatch.setattr(installation, "install", install_without_pip)
