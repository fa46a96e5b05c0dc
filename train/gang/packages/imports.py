"""Finds which modules a script needs from packages, by its own imports; it is not executed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from train.gang.packages.requested import Requested
from train.gang.plan.staging import WORKER, Script

#: Packages whose modules have another name.
_DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
    "dateutil": ("python-dateutil",),
    "dotenv": ("python-dotenv",),
    "git": ("gitpython",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "yaml": ("pyyaml",),
}


def of_script(script: Script, included: Iterable[Path] = ()) -> list[str]:
    """Return the modules of packages that a script imports whatever happens: at the top of its own
    files, and not within ``try``, ``if`` or a function. The project's own training program needs
    none that TensorFlow's environment lacks.

    Args:
        included: files and folders that are staged next to it.
    """
    if script.path == WORKER:
        return []
    own = _own_modules(script.folder) | {path.stem for path in included}
    found: dict[str, None] = {}
    pending, seen = [script.path], {script.path}
    while pending:
        for module in _imported(pending.pop()):
            name = module.partition(".")[0]
            if name not in own:
                found.setdefault(name)
                continue
            for path in _files_of(script.folder, module):
                if path not in seen:
                    seen.add(path)
                    pending.append(path)
    return sorted(name for name in found if name not in sys.stdlib_module_names)


def distribution_of(module: str, requested: Requested | None = None) -> str:
    """Return the package that a module is of, by its name in what a script asks for if it has it;
    else the usual name.
    """
    names = _DISTRIBUTIONS.get(module, (canonicalize_name(module),))
    for line in requested.packages if requested else ():
        if canonicalize_name(line.requirement.name) in names:
            return line.requirement.name
    return names[0]


def _own_modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def _files_of(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files that Python runs to import a module of the script's folder."""
    path = folder
    for part in module.split("."):
        path = path / part
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                yield file


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, by their full names; none where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for statement in _always(tree.body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module
            # ``from package import module`` may run a file of the script, too.
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def _always(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a file is run."""
    for statement in body:
        match statement:
            case ast.With(body=inner):
                yield from _always(inner)
            case ast.If(test=test, body=inner) if _is_main(test):
                yield from _always(inner)
            case _:
                yield statement


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test).replace('"', "'") in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )
