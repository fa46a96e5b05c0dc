"""What the tests of the role ``tensorflow`` share; a pytest plugin.

No TensorFlow is downloaded: a tiny wheel that calls itself ``tensorflow-cpu`` stands for it.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests import host_roles
from tests.host_roles import load

REPO = Path(__file__).resolve().parent.parent
ROLE = REPO / "roles" / "tensorflow"
MODULE_PATH = ROLE / "library" / "tensorflow_venv.py"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


def part(name: str) -> ModuleType:
    """A part of what the role's modules share."""
    return host_roles.part(f"tensorflow_setup.{name}")


module = load(MODULE_PATH)
action = load(ROLE / "action_plugins" / "tensorflow_venv.py")


def make_wheel(
    folder: Path, version: str, body: str = "", name: str = "tensorflow-cpu", package: str = ""
) -> Path:
    """A wheel of a distribution with one module, ``tensorflow`` unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    package = package or ("tensorflow" if name.startswith("tensorflow") else name)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        f"{package}.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
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
    described = action.locks.describe_lock(str(lock))
    return {**params, "locks": [described], "lock_file": str(lock)}


def with_extra(params: dict[str, Any], lock: Path, name: str = "script") -> dict[str, Any]:
    """The module's parameters with packages on top."""
    described = action.locks.describe_extra(str(lock))
    extra = {"extra_requirements": described, "extra_file": str(lock), "environment": name}
    return {**params, **extra}


@pytest.fixture(scope="session")
def pip_zip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The control node's pip, as hosts get it."""
    archive: str = action.pack_pip(str(tmp_path_factory.mktemp("pip")), "3.10.0")
    return archive


@pytest.fixture
def params(tmp_path: Path, pip_zip: str) -> dict[str, Any]:
    """Arguments for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    return with_lock(
        {
            "root": str(tmp_path / "root"),
            "python": sys.executable,
            "supported_python": ["3.10", "3.13"],
            "wheelhouse": str(wheel.parent),
            "pip_zip": pip_zip,
        },
        make_lock(tmp_path / "lock.txt", wheel),
    )


Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module in this process; returns its result."""

    def run(
        params: dict[str, Any], check_mode: bool = False, run: ModuleType = module
    ) -> dict[str, Any]:
        arguments = {**params, "_ansible_check_mode": check_mode}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            run.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return run


def shown_version(link: str, package: str = "tensorflow") -> str:
    """The version that an environment's interpreter finds."""
    command = [f"{link}/bin/python", "-c", f"import {package}; print({package}.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environments(root: str) -> list[str]:
    """The names of the environments that are there."""
    folder = Path(root, "venvs")
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a playbook for two inventory hosts on this machine, with a lock of the stand-in."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    lock = make_lock(tmp_path / "lock.txt", wheel)
    hosts: dict[str, dict[str, str]] = {"worker-0": {}, "worker-1": {}}
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
        "setup_roles": ["tensorflow"],
    }
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"worker": {"hosts": hosts, "vars": common}}))
    # The role alone, and on every inventory host, where setup.yml takes one of each machine.
    for name, pattern in {"one": "worker-0", "each": "all"}.items():
        text = [{"hosts": pattern, "gather_facts": False, "roles": ["tensorflow"]}]
        (tmp_path / f"{name}.yml").write_text(json.dumps(text))

    def run(*options: str, inventory: Path = inventory, playbook: str = "one", **extra: Any) -> Any:
        variables = {"tensorflow_requirements": str(lock), **extra}
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "COLUMNS": "1000",
            "PIP_RETRIES": "1",
        }
        path = tmp_path / f"{playbook}.yml"
        path = path if path.exists() else REPO / "playbooks" / f"{playbook}.yml"
        command = [str(ANSIBLE_PLAYBOOK), "-i", str(inventory), str(path), *options]
        return subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=REPO,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def counts(output: str, word: str) -> dict[str, int]:
    """A column of the recap, by host."""
    return {
        host: int(count)
        for host, count in re.findall(rf"^(worker-\d)\s+: .*\b{word}=(\d+)", output, re.M)
    }
