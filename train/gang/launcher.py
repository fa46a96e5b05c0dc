"""Packs the programs of train/host, which are sent to the hosts with each call."""

from __future__ import annotations

import base64
import functools
import importlib.machinery
import importlib.util
import io
import marshal
import zipfile
from pathlib import Path

from train.gang import PACKAGE

#: Header flag of a compiled module: valid without a check of its source (PEP 552).
_UNCHECKED = (1).to_bytes(4, "little")


@functools.cache
def archive() -> str:
    """Return train/host as a base64 zip archive from which Python can import ``train.host``.

    Compiling a module takes a host longer than most calls, so the archive includes compiled
    modules. A host with the same Python version as this process uses them. Other versions of Python
    compile the sources.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as programs:
        programs.writestr("train/__init__.py", "")
        for path in sorted((PACKAGE / "host").glob("*.py")):
            programs.write(path, f"train/host/{path.name}")
            programs.writestr(f"train/host/{path.stem}.pyc", _compiled(path))
    return base64.b64encode(packed.getvalue()).decode()


def _compiled(path: Path) -> bytes:
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    source_hash = importlib.util.source_hash(path.read_bytes())
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED + source_hash
    return header + marshal.dumps(loader.get_code(path.stem))
