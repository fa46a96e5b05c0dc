"""Packs results of a rank on its host, for the control node to fetch."""

from __future__ import annotations

import os
import tarfile
from typing import List, Mapping

from . import outputs, rank_files
from .call_types import CallError, CallResult, Params


def pack(params: Params) -> CallResult:
    """Pack results of a rank: files that match ``globs`` if these are given, else ``folders``."""
    return collect_files(params) if params.get("globs") else collect(params)


def collect(params: Params) -> CallResult:
    """Pack the existing ``folders`` of ``rank_dir`` and return the path of the ``archive``.

    The path is None if no folder exists. Links and special files are left out, because the control
    node would reject them.
    """
    rank_dir = params["rank_dir"]
    paths = {name: os.path.join(rank_dir, name) for name in params["folders"]}
    names = [n for n, path in paths.items() if os.path.isdir(path) and not os.path.islink(path)]
    if not names:
        return {"archive": None}
    return {"changed": True, "archive": _packed(rank_dir, "results.tar.gz", paths, names)}


def collect_files(params: Params) -> CallResult:
    """Pack files of the working directory of ``rank_dir`` that match ``globs``.

    Return the path of the ``archive`` in ``rank_dir``, which contains the files in a folder named
    after the task. The path is None if nothing matches.
    """
    code_dir, task = os.path.join(params["rank_dir"], rank_files.CODE_DIR), params["task"]
    paths = {
        "%s/%s" % (task, path): os.path.join(code_dir, path)
        for path in outputs.matching(code_dir, params["globs"])
    }
    if not paths:
        return {"archive": None}
    archive = _packed(params["rank_dir"], "collected.tar.gz", paths, list(paths))
    return {"changed": True, "archive": archive}


def _packed(rank_dir: str, file: str, paths: Mapping[str, str], names: List[str]) -> str:
    """Pack ``names``, whose locations are in ``paths``, into ``file`` and return its path."""
    archive = os.path.join(rank_dir, file)
    try:
        # Weights hardly shrink, so little time is spent on compression.
        with tarfile.open(archive + ".tmp", "w:gz", compresslevel=1) as tar:

            def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
                tar.inodes.clear()  # type: ignore[attr-defined]  # pack a file with two names twice
                return member if member.isreg() or member.isdir() else None

            for name in names:
                tar.add(paths[name], name, filter=plain)
        os.replace(archive + ".tmp", archive)
    except OSError as error:
        raise CallError("%s cannot be packed: %s" % (rank_dir, error)) from None
    return archive
