"""What the tests of the role ``tensorflow`` share.

No TensorFlow is downloaded: a tiny wheel that calls itself ``tensorflow-cpu`` stands for it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support import host_roles
from tests.support.lab import REPOSITORY

ROLE = REPOSITORY / "roles" / "tensorflow"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"

locks = host_roles.load("tensorflow.filter_plugins.tensorflow_locks")
module = host_roles.load("tensorflow.library.tensorflow_venv")
cleanup, gpus, installation = (
    host_roles.part(f"tensorflow_setup.{name}") for name in ("cleanup", "gpus", "installation")
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


def shown_version(link: str | Path, package: str = "tensorflow") -> str:
    """The version that an environment's interpreter finds."""
    command = [f"{link}/bin/python", "-c", f"import {package}; print({package}.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
