"""Finds the packages that a script and its own files import on startup."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def needs(module: str, entry: str, files: Mapping[str, Path]) -> bool:
    """Return whether a script imports a module from a package on startup; see ``packages``."""
    return module in packages(entry, files)


def packages(entry: str, files: Mapping[str, Path]) -> list[str]:
    """Return the top-level modules from packages that a script always imports on startup.

    These imports are at the top level of a file, in ``with`` or in ``if __name__ == '__main__'``,
    but not in ``try``, another ``if`` or a function. Python's own modules and the job's files are
    excluded.

    Args:
        entry: the file that is run, by its name in ``files``.
        files: all files of the job, by their POSIX paths in its folder.
    """
    modules = {_module(name): name for name in files if name.endswith(".py")}
    found: dict[str, None] = {}
    seen: set[str] = set()
    todo = [entry]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for imported in _imports(files[name], _module(name), name.endswith("__init__.py")):
            local = [modules[part] for part in _parts(imported) if part in modules]
            if not local:
                found.setdefault(imported.partition(".")[0])
            todo += local
    folders = {name.partition("/")[0] for name in files if "/" in name}
    return sorted(found.keys() - sys.stdlib_module_names - folders)


def _module(name: str) -> str:
    path = Path(name).with_suffix("")
    return ".".join(path.parent.parts if path.name == "__init__" else path.parts)


def _parts(module: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``, because Python imports all of them."""
    words = module.split(".")
    for count in range(1, len(words) + 1):
        yield ".".join(words[:count])


def _imports(path: Path, module: str, is_package: bool) -> Iterator[str]:
    """Yield the modules that a file imports at its top level, or nothing if it cannot be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = module.split(".") if is_package else module.split(".")[:-1]
    for statement in _always(tree.body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            above = package[: len(package) - statement.level + 1] if statement.level else []
            source = ".".join([*above, *filter(None, [statement.module])])
            if source:
                yield source
                yield from (f"{source}.{alias.name}" for alias in statement.names)


def _always(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that always run when a file is run."""
    for statement in body:
        match statement:
            case ast.With(body=inner):
                yield from _always(inner)
            case ast.If(test=test, body=inner) if _is_main(test):
                yield from _always(inner)
            case _:
                yield statement


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test) == "__name__ == '__main__'"
