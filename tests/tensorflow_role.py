"""What the tests of the role ``tensorflow`` share; a pytest plugin.

No TensorFlow is downloaded: a tiny wheel that calls itself ``tensorflow-cpu`` stands for it.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pip
import pytest
from ansible.module_utils.testing import patch_module_args

from tests import host_roles
from tests.conftest import REPOSITORY, environment

ROLE = REPOSITORY / "roles" / "tensorflow"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"

module = host_roles.load(ROLE / "library" / "tensorflow_venv.py")
locks = host_roles.load(ROLE / "filter_plugins" / "tensorflow_locks.py")
bundle = host_roles.load(ROLE / "lookup_plugins" / "tensorflow_bundle.py")
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
    """The module's parameters with another lock, and a folder as hosts are sent it."""
    sent = Path(f"{lock}.sent")
    if not sent.exists():
        sent.mkdir()
        (sent / "pip").symlink_to(Path(pip.__file__).parent)
        (sent / "tensorflow.txt").symlink_to(lock)
    return {**params, "locks": locks.locks([str(lock)]), "sent": str(sent)}


def with_extra(params: dict[str, Any], lock: Path, name: str = "script") -> dict[str, Any]:
    """The module's parameters with packages on top."""
    shutil.copy(lock, Path(params["sent"], "extra.txt"))
    (described,) = locks.locks([str(lock)], extra=True)
    return {**params, "extra": described, "environment": name}


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """Arguments for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    fixed = {"root": str(tmp_path / "root"), "python": sys.executable}
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
    """Run a playbook for inventory hosts on this machine, with a lock of the stand-in."""
    lock = make_lock(tmp_path / "lock.txt", make_wheel(tmp_path / "wheels", "1.0"))
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
        "tensorflow_requirements": str(lock),
        "setup_roles": ["tensorflow"],
    }
    # The role alone, and on every inventory host, where setup.yml takes one of each machine.
    removal = {"ansible.builtin.import_role": {"name": "tensorflow", "tasks_from": "remove"}}
    plays: dict[str, dict[str, Any]] = {
        "role": {"roles": ["tensorflow"]},
        "remove": {"tasks": [removal]},
    }
    for name, what in plays.items():
        text = [{"hosts": "all", "gather_facts": False, **what}]
        (tmp_path / f"{name}.yml").write_text(json.dumps(text))

    def run(
        *options: str,
        playbook: str = "role",
        hosts: Mapping[str, Mapping[str, Any]] = {"worker-0": {}},
        **extra: Any,
    ) -> Any:
        inventory = tmp_path / "hosts.json"
        inventory.write_text(json.dumps({"worker": {"hosts": hosts, "vars": common}}))
        path = tmp_path / f"{playbook}.yml"
        path = path if path.exists() else REPOSITORY / "playbooks" / f"{playbook}.yml"
        program = Path(sys.executable).with_name("ansible-playbook")
        return subprocess.run(
            [str(program), "-i", str(inventory), str(path), *options, "-e", json.dumps(extra)],
            cwd=REPOSITORY,
            env={**environment(), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "1000", "PIP_RETRIES": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def install_without_pip(made: Any, wanted: Any, held: int) -> None:
    """What the real function leaves behind, ten times faster."""
    packages, programs = Path(made.packages), Path(made.folder, "bin")
    shutil.rmtree(made.folder, ignore_errors=True)
    programs.mkdir(parents=True)
    interpreter = Path(sys.executable).resolve()
    (programs / "python").symlink_to(interpreter)
    Path(made.folder, "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    packages.mkdir(parents=True)
    requirements = Path(wanted.params["sent"], f"{made.part}.txt").read_text()
    for name, version in re.findall(r"(?m)^(\S+)==(\S+)", requirements):
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        zipfile.ZipFile(Path(wanted.params["wheelhouse"], wheel)).extractall(packages)
    if made is not wanted.base:
        line = f"import site; site.addsitedir({wanted.base.packages!r})\n"
        (packages / "tensorflow.pth").write_text(line)


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module install without pip, for tests of what comes before and after."""
    monkeypatch.setattr(installation, "install", install_without_pip)
