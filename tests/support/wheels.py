"""Small wheels, so that tests of packages need no index."""

from __future__ import annotations

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path


def write(folder: Path, name: str, metadata: str = "", code: str = "") -> Path:
    """Write a wheel with a package of one file, and return its path.

    Args:
        name: of the wheel without ``.whl``.
        metadata: additional lines of its ``METADATA``.
    """
    package, version, *tags = name.split("-")
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}/__init__.py": code,
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}", metadata, ""]
        ),
        f"{info}/WHEEL": "\n".join(
            ["Wheel-Version: 1.0", "Root-Is-Purelib: true", f"Tag: {'-'.join(tags)}", ""]
        ),
    }
    record = [f"{file},sha256={_digest(text)},{len(text)}" for file, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return path


def _digest(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
