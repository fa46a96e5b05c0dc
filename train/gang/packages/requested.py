"""Reads the requirements of a script from its ``requirements.txt`` or ``pyproject.toml``.

The formats are those of pip (https://pip.pypa.io/en/stable/reference/requirements-file-format) and
of the packaging guide (https://packaging.python.org/en/latest/specifications/pyproject-toml).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from train.gang import local_paths
from train.gang.errors import UserError
from train.gang.packages import uv

#: The value of ``train_job_requirements`` for the file next to the script.
NEXT_TO_SCRIPT = "auto"
NAMES = ("requirements.txt", "pyproject.toml")
#: Maximum size of a requirements file, in bytes.
LARGEST = 1 << 20
#: Options in a requirements file that set where packages come from.
INDEXES = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--no-index")
_NESTED = ("-r", "--requirement", "-c", "--constraint")
_WITHOUT_EFFECT = ("--pre", "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes")
_REPOSITORY = re.compile(r"^(?:git|hg|svn|bzr)\+")
_PATH = re.compile(r"^(?:file:|~|\.{0,2}/|[A-Za-z0-9._/-]+\.(?:whl|zip|tar\.gz|tar\.bz2)$)")


@dataclass(frozen=True)
class Line:
    """A requirement and its place."""

    place: str  # such as "requirements.txt, line 3"
    requirement: Requirement
    is_constraint: bool = False  # limits a package's version without requesting the package


@dataclass(frozen=True)
class Requested:
    """The requirements of a script."""

    path: Path
    lines: tuple[Line, ...]
    indexes: tuple[str, ...]  # lines with options from INDEXES, which may contain a password

    @property
    def packages(self) -> list[Line]:
        """The lines that request a package."""
        return [line for line in self.lines if not line.is_constraint]


def find(value: str, script_folder: Path) -> Path:
    """Return the file that ``train_job_requirements`` refers to. Raise UserError if there is none.

    Args:
        value: a path on the control node, or NEXT_TO_SCRIPT.
        script_folder: the folder of the script.
    """
    if value != NEXT_TO_SCRIPT:
        path = local_paths.absolute(value).resolve()
        if not path.is_file():
            raise UserError(
                f"no such file: {path}. --requirements (train_job_requirements) takes a "
                "requirements.txt or pyproject.toml on this control node, or "
                f"{NEXT_TO_SCRIPT} for the one next to the script"
            )
        return path
    path_or_none = next_to(script_folder)
    if path_or_none is None:
        raise UserError(
            f"{script_folder} has neither {NAMES[0]} nor {NAMES[1]} with [project] "
            "dependencies: write one, or pass a file to --requirements "
            "(train_job_requirements)"
        )
    return path_or_none


def next_to(script_folder: Path) -> Path | None:
    """Return the requirements file in the script's folder, or None."""
    requirements, project = (script_folder / name for name in NAMES)
    if requirements.is_file():
        return requirements
    if project.is_file() and "dependencies" in _project(project):
        return project
    return None


def read(path: Path) -> Requested:
    """Return the requirements in a file.

    Raise UserError if the file requests no packages, or contains lines that are not supported.
    """
    lines: list[Line] = []
    indexes: list[str] = []
    problems: list[str] = []
    if path.suffix == ".toml":
        found = _of_project(path)
    else:
        found = _of_requirements(path, is_constraint=False, seen=())
    for place, text, is_constraint in found:
        if _option(text) in INDEXES:
            indexes.append(text)
            continue
        try:
            lines.append(Line(place, _parsed(text), is_constraint))
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise UserError("\n".join(problems))
    if not any(not line.is_constraint for line in lines):
        raise UserError(f"{path} lists no packages: add packages to it, or omit --requirements")
    return Requested(path, tuple(lines), tuple(dict.fromkeys(indexes)))


def _option(text: str) -> str:
    """Return the first word of a line. If it starts with a hyphen, it is an option."""
    return re.split(r"[=\s]", text, maxsplit=1)[0]


def _parsed(text: str) -> Requirement:
    """Return a line as a requirement. Raise ValueError if it is not supported."""
    name = _option(text)
    if name in ("-e", "--editable"):
        raise ValueError(
            f"{text} would be an editable install of a folder on this control node: copy the "
            "folder along with the script (--include), or build a wheel and serve it from a "
            "package index"
        )
    url = text.partition("@")[2].strip() if re.match(r"[\w.\[\],-]+\s*@", text) else text
    if _REPOSITORY.match(url) or "://" in url.partition(";")[0]:
        raise ValueError(
            f"{uv.without_passwords(text)} has no hash in a package index: use a released "
            "version (NAME==VERSION), or copy its source along with the script (--include)"
        )
    if _PATH.match(url.partition(";")[0].strip()):
        raise ValueError(
            f"{text} is a path on this control node: use a released version (NAME==VERSION), "
            "serve the wheel from a package index (--extra-index-url), or copy the source along "
            "with the script (--include)"
        )
    if text.startswith("-"):
        raise ValueError(
            f"the option {name} is not supported: remove the line; the supported options are "
            f"{', '.join(INDEXES[::2])} and -r"
        )
    try:
        return Requirement(re.split(r"\s--hash[= ]", text)[0])
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{text[:60]!r} is not a requirement such as pandas>=2.1 ({reason})"
        ) from None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(
                f"{path} is larger than {LARGEST >> 20} MiB: pass a requirements.txt or "
                "pyproject.toml"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as UTF-8") from None


def _of_requirements(
    path: Path, *, is_constraint: bool, seen: tuple[Path, ...]
) -> Iterator[tuple[str, str, bool]]:
    """Yield each line's place, text and whether it is a constraint, including nested files."""
    path = path.resolve()
    if path in seen:
        raise UserError(f"{path} includes itself (-r): remove that line")
    if not path.is_file():
        raise UserError(
            f"no such file: {path}, which {seen[-1]} includes: create the file, or remove the "
            "line with -r"
        )
    number, pending = 0, ""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += line[:-1] + " "
            continue
        text = re.sub(r"(^|\s)#.*$", "", pending + line).strip()
        pending = ""
        if not text:
            continue
        option, _, rest = (
            re.sub(r"^(-[rc])(?=\S)", r"\1 ", text).replace("=", " ", 1).partition(" ")
        )
        if option in _NESTED:
            nested = path.parent / rest.strip()
            constrains = is_constraint or option in _NESTED[2:]
            yield from _of_requirements(nested, is_constraint=constrains, seen=(*seen, path))
        elif option not in _WITHOUT_EFFECT:
            yield f"{path.name}, line {number}", text, is_constraint
    if pending:
        raise UserError(f"{path.name}, line {number} ends in a backslash, but no line follows")


def _project(path: Path) -> dict[str, object]:
    try:
        project = tomllib.loads(_text(path)).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    return project if isinstance(project, dict) else {}


def _of_project(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield the place and the text of each dependency of a project. None is a constraint."""
    project = _project(path)
    dependencies = project.get("dependencies")
    if not isinstance(dependencies, list):
        dynamic = "dependencies" in project.get("dynamic", [])  # type: ignore[operator]
        has = "has dynamic dependencies" if dynamic else "has no [project] dependencies list"
        raise UserError(f"{path} {has}: write a requirements.txt, and pass it to --requirements")
    for index, text in enumerate(dependencies, 1):
        yield f"{path.name}, dependency {index}", str(text).strip(), False
