"""Collects the files that a job sends to the hosts: the script's folder and included files."""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from train.gang import PACKAGE, archives, local_paths
from train.gang.errors import UserError
from train.gang.job_records import Manifest, arguments_of
from train.gang.scratch import Scratch
from train.host import processes, rank_files

WORKER = PACKAGE / "worker.py"
IGNORE_FILE = ".trainignore"
#: Patterns of files and folders that are never staged.
IGNORED = (
    ".git",
    "__pycache__",
    "*.pyc",
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
)
#: Maximum bytes in an archive that is fetched from a host.
LARGEST = 1 << 34


class Script(NamedTuple):
    """A script on the control node and how a job runs it."""

    folder: Path  # staged as a whole
    entry: str  # path of the file to run, relative to the folder
    module: str = ""  # name for ``python -m``, or empty to run the file

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / self.entry

    @property
    def words(self) -> list[str]:
        """The arguments with which Python runs the script in its folder."""
        return ["-m", self.module] if self.module else [self.entry]


def find_script(script: str, module: str = "") -> Script:
    """Return the script to run. Its whole folder is staged.

    If ``script`` is a directory, run ``main.py``, ``__main__.py`` or the only Python file in it.
    With ``module``, such as ``trainer.task``, run that module in the directory instead. Raise
    UserError if there is no such script or module, or if its folder is a home directory or /tmp.
    """
    path = local_paths.absolute(script).resolve()
    if module:
        folder, entry = _find_module(path, module)
    elif path.is_dir():
        names = [found.name for found in path.glob("*.py") if found.is_file()]
        mains: list[str] = [name for name in ("main.py", "__main__.py") if name in names]
        names = mains[:1] or names
        if len(names) != 1:
            raise UserError(
                f"{path} contains {len(names)} Python files but no main.py: pass the path "
                "of the script to run"
            )
        folder, entry = path, names[0]
    elif path.is_file():
        folder, entry = path.parent, path.name
    else:
        raise UserError(
            f"no such script: {path}. --script (train_job_script) takes a file or directory "
            "on this control node"
        )
    if _is_common(folder):
        raise UserError(
            f"{path} is in {folder}, and the whole directory of a script is copied to the "
            "hosts: move the script to its own directory"
        )
    return Script(folder, entry, module)


def _find_module(folder: Path, module: str) -> tuple[Path, str]:
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(
            f"{module!r} is not a module name: --module (train_job_module) takes names such "
            "as trainer.task"
        )
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a directory: with --module (train_job_module), --script must "
            f"be the directory that contains {parts[0]}"
        )
    path = Path(*parts)
    for entry in (path.with_suffix(".py"), path / "__main__.py"):
        if (folder / entry).is_file():
            return folder, str(entry)
    raise UserError(
        f"no module {module} in {folder}: neither {path.with_suffix('.py')} nor "
        f"{path / '__main__.py'} exists (--module, train_job_module)"
    )


def _is_common(folder: Path) -> bool:
    """Return whether a folder contains unrelated files: a home directory, one above it, or /tmp."""
    return Path.home().is_relative_to(folder) or folder == Path("/tmp")


def find_includes(include: str | Sequence[str]) -> list[Path]:
    """Return the files and folders to stage next to the script, as absolute paths.

    Raise UserError if one of them does not exist or is a home directory or /tmp, or if two have the
    same base name.
    """
    found: dict[str, Path] = {}
    for text in [include] if isinstance(include, str) else include:
        # A link keeps its own name, which resolve() would replace. Its target's content is sent.
        path = Path(os.path.normpath(local_paths.absolute(text)))
        if not path.is_file() and not path.is_dir():
            raise UserError(
                f"no such file or folder: {path}. --include (train_job_include) takes files "
                "and folders on this control node"
            )
        if path.is_dir() and _is_common(path.resolve()):
            raise UserError(
                f"{path} cannot be included as a whole (--include, train_job_include): pass "
                "only the files and folders that the script needs"
            )
        other = found.setdefault(path.name, path)
        if other != path:
            raise UserError(
                f"{other} and {path} would both be staged as {path.name} (--include, "
                "train_job_include): rename one"
            )
    return list(found.values())


def staged_files(folder: Path, extra: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield every file to stage and its path relative to ``folder``, in a stable order.

    Files and folders are left out if their names or paths match a pattern in ``extra``,
    ``.trainignore`` or IGNORED. In ``.trainignore``, the last matching pattern counts, and one that
    begins with ``!`` keeps files. Links are followed, except those to a folder that contains them.
    Raise UserError if a link leads to a home directory or /tmp.
    """
    ignore = folder / IGNORE_FILE
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
    listed = [line.strip().rstrip("/") for line in lines if line.strip()[:1] not in "#"]

    def is_kept(path: Path) -> bool:
        names = (path.name, path.relative_to(folder).as_posix())

        def matches(pattern: str) -> bool:
            return any(fnmatch.fnmatch(name, pattern) for name in names)

        if any(map(matches, (*IGNORED, *extra))):
            return False
        last = next((line for line in reversed(listed) if matches(line.removeprefix("!"))), "!")
        return last.startswith("!")

    def found_in(parent: Path, above: frozenset[Path]) -> Iterator[Path]:
        target = parent.resolve()
        if target in above:  # a link to a folder that contains it
            return
        if parent.is_symlink() and _is_common(target):
            raise UserError(
                f"{parent} is a link to {target}, which cannot be copied as a whole: replace the "
                f"link, or list it in {ignore}"
            )
        try:
            kept = sorted(path for path in parent.iterdir() if is_kept(path))
        except (PermissionError, FileNotFoundError):
            return  # the script could not read this folder here either, or it was just removed
        yield from (path for path in kept if path.is_file())
        for path in kept:
            if path.is_dir():
                yield from found_in(path, above | {target})

    for path in found_in(folder, frozenset()):
        yield path, path.relative_to(folder).as_posix()


def code_files(
    folder: Path,
    include: Sequence[Path] = (),
    exclude: Sequence[str] = (),
    limit_mb: float = 100,
) -> list[tuple[Path, str]]:
    """Return every file to copy to ``code/``, with its path there. Links are followed.

    Raise UserError if the files are too large, or if an included name is already taken or has no
    files.

    Args:
        include: files and folders to add under their base names.
        exclude: patterns to leave out, in addition to those in each folder's ``.trainignore``.
        limit_mb: maximum total size in MiB, before compression.
    """
    code = list(staged_files(folder, exclude))
    taken = {name.split("/")[0] for _, name in code}
    for path in include:
        if path.name in taken:
            raise UserError(
                f"{path} cannot be included as {path.name}: the script's folder {folder} "
                "already has an entry with that name; rename one of them"
            )
        inner = [(path, path.name)]
        if path.is_dir():
            inner = [(file, f"{path.name}/{name}") for file, name in staged_files(path, exclude)]
        if not inner:
            raise UserError(f"{path} is included, but contains no files to copy")
        code += inner
    sizes: Counter[str] = Counter()
    for path, name in code:
        sizes[name.split("/")[0]] += path.stat().st_size
    total_mb = sizes.total() / 2**20
    if total_mb > limit_mb:
        largest = ", ".join(
            f"{name} ({size / 2**20:.0f} MiB{_linked(folder / name)})"
            for name, size in sizes.most_common(3)
        )
        what = f"{folder} with the included files" if include else f"{folder}"
        raise UserError(
            f"the size of {what} is {total_mb:.0f} MiB; the limit is {limit_mb:g} MiB "
            f"(train_job_code_limit_mb); largest: {largest}. List unneeded files in "
            f"{folder / IGNORE_FILE}"
        )
    return code


def _linked(path: Path) -> str:
    return f", a link to {path.resolve()}" if path.is_symlink() else ""


def pack(code: Sequence[tuple[Path, str]], archive: Path) -> str:
    """Write the archive that every rank unpacks. Return the SHA-256 of its names and contents.

    A file that changes in the meantime, such as a log, is in the archive and in the hash with the
    same content.
    """
    digest = hashlib.sha256()
    # The default format has two more headers for each file, with the fractions of its times.
    plain = tarfile.GNU_FORMAT
    with tarfile.open(archive, "w:gz", compresslevel=1, format=plain, dereference=True) as tar:
        for path, name in code:
            with path.open("rb") as file:
                member = tar.gettarinfo(arcname=f"{rank_files.CODE_DIR}/{name}", fileobj=file)
                content = file.read()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            digest.update(member.name.encode("utf-8", "surrogateescape") + b"\0" + content)
    return digest.hexdigest()


def check_archive(archive: Path, sha256: str) -> None:
    """Raise UserError unless ``archive`` is the job's. It may have been fetched from a host."""
    if not archive.is_file():
        raise UserError(
            f"{archive}, which was sent to the hosts, does not exist: attach to the job"
        )
    try:
        found = archives.digest(archive, LARGEST)
    except archives.ArchiveError as error:
        found = str(error)
    if found != sha256:
        raise UserError(
            f"{archive} differs from the code that the job was started with (SHA-256 {sha256}, "
            f"here {found}): remove this file and attach to the job again"
        )


def check_arguments(
    manifest: Manifest,
    code: Path | Sequence[tuple[Path, str]],
    tf_configs: Mapping[str, Mapping[str, object]],
) -> None:
    """Check the arguments of train/worker.py on the control node, without TensorFlow.

    Raise UserError if an option is unknown or its value is wrong. Do nothing for other scripts.

    Args:
        code: the code archive, or the files to pack. Files that options name are looked up in it.
            None of its code is run.
        tf_configs: TF_CONFIG by inventory host, starting with the first rank's.
    """
    if Path(manifest["script"]) != WORKER:
        return
    # The folder is only for files: without PYTHONPATH, no modules are imported from it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with Scratch("check") as folder:
        if isinstance(code, Path):
            with tarfile.open(code) as tar:
                for member in tar:
                    archives.extract(tar, member, Path(folder))
        else:
            for path, name in code:
                link = Path(folder, rank_files.CODE_DIR, name)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        by_host = {host: arguments_of(manifest, host) for host in tf_configs}
        checked: list[list[str]] = []
        for host, arguments in by_host.items():
            if arguments in checked:
                continue
            checked.append(arguments)
            done = processes.run(
                [sys.executable, str(WORKER), "--check", *arguments],
                cwd=Path(folder, rank_files.CODE_DIR),
                env={**environment, "TF_CONFIG": json.dumps(tf_configs[host])},
            )
            if done.returncode:
                raise UserError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
