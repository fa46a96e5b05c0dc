"""Packs the programs of train/host, which are sent to the hosts with each call."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import io
import marshal
import sys
import zipfile
from pathlib import Path

from train.gang import PACKAGE

#: Header flag of a compiled module: valid without a check of its source (PEP 552).
_UNCHECKED = (1).to_bytes(4, "little")
#: Runs the module in the first argument with the rest, as ``python3 -m`` does.
_MAIN = """\
import os, runpy, sys
sys.path[0] = os.path.abspath(sys.path[0])
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@functools.cache
def archive() -> bytes:
    """Return train/host as a zip archive from which Python can import ``train.host``.

    Compiling a module takes a host longer than most calls, so the archive includes compiled
    modules. A host with the same Python version as this process uses them. Other versions of Python
    compile the sources. ``python3 ARCHIVE train.host.NAME ARGUMENT ...`` runs a program.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as programs:
        programs.writestr("train/__init__.py", "")
        programs.writestr("__main__.py", _MAIN)
        for path in sorted((PACKAGE / "host").glob("*.py")):
            programs.write(path, f"train/host/{path.name}")
            programs.writestr(f"train/host/{path.stem}.pyc", _compiled(path))
    return packed.getvalue()


@functools.cache
def archive_of(module: str, compiled_for: str = "") -> bytes:
    """Return the part of ``archive`` that a call of a module of train/host needs.

    It is for calls that are repeated every few seconds. For hosts whose Python version (such as
    ``3.11``) is that of this process, the archive has only compiled modules.
    """
    needed: set[str] = set()
    waiting = {"__init__", "calls", module}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting |= _imports_of(name) - needed
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as programs:
        programs.writestr("train/__init__.py", "")
        for name in sorted(needed):
            path = PACKAGE / "host" / f"{name}.py"
            if compiled_for != f"{sys.version_info.major}.{sys.version_info.minor}":
                programs.write(path, f"train/host/{name}.py")
            programs.writestr(f"train/host/{name}.pyc", _compiled(path))
    return packed.getvalue()


def _imports_of(module: str) -> set[str]:
    """Return the modules of train/host that a module of it imports."""
    source = (PACKAGE / "host" / f"{module}.py").read_text(encoding="utf-8")
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found


def _compiled(path: Path) -> bytes:
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    source_hash = importlib.util.source_hash(path.read_bytes())
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED + source_hash
    return header + marshal.dumps(loader.get_code(path.stem))
