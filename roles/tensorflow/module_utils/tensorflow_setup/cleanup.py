"""Old environments: which of them nobody needs, and their removal."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import nullcontext
from typing import Dict, Iterable, List, Optional, Set, Tuple

from .installation import CACHE, exclusive
from .wanted import MARKER, Wanted, read_marker

#: Names that this role gives; other folders are left alone.
NAMES = re.compile(r"(tensorflow-[^/]+-py[0-9]+\.[0-9]+|extra)-[0-9a-f]{12}")
#: The program uv, and what it keeps for the next installation.
TOOLS = (".uv", CACHE)
PROC = "/proc"
MOUNTS = "/proc/self/mountinfo"
#: Filesystems that no other machine works on at the same time.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay"}


def environments(folder: str) -> Dict[str, float]:
    """The role's environments by name: when each was linked last, 0 for an unfinished one."""
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if NAMES.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path):
            finished = bool(read_marker(path))
            found[name] = os.stat(os.path.join(path, MARKER)).st_mtime if finished else 0.0
    return found


def links(root: str) -> Dict[str, str]:
    """The links of ``root`` into ``venvs/``, by path: the name of the environment."""
    folder = os.path.realpath(os.path.join(root, "venvs"))
    found = {}
    for path in (os.path.join(root, name) for name in os.listdir(root)):
        target = os.path.realpath(path)
        if os.path.islink(path) and os.path.dirname(target) == folder:
            found[path] = os.path.basename(target)
    return found


def with_bases(folder: str, names: Iterable[str]) -> Set[str]:
    """The names, and those of the environments on which they were put."""
    markers = [read_marker(os.path.join(folder, name)) for name in names]
    return {*names, *(marker["base"] for marker in markers if "base" in marker)}


def remove_old(wanted: Wanted, before: str, check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove what nobody needs now that the link was switched, away from the folder ``before``.

    An environment stays that is wanted or that another link needs; of the others, those that were
    in use last. Returns the names that are gone (with ``check_only``, that would go), and why
    others are not.
    """
    keep, folder, found = wanted.params["keep"], wanted.folder, environments(wanted.folder)
    if not keep or not found:
        return [], []
    others = [name for path, name in links(wanted.root).items() if path != wanted.link]
    needed = with_bases(folder, [wanted.base.name, wanted.environment.name, *others])
    last = os.path.basename(before)  # whatever its marker's time is
    spare = [name for name in found if found[name] and name not in needed]
    spare.sort(key=lambda name: (name == last, found[name]), reverse=True)
    names = sorted(set(found) - needed - with_bases(folder, spare[: keep - 1]))
    shared = shared_with(folder) if names else ""
    if shared:
        return [], [f"{len(names)} old environments in {folder} stay: {shared}."]
    return _remove(wanted.root, names, check_only)


def remove_all(root: str, check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments and links, but for what a running process uses; returns the paths that
    are gone (with ``check_only``, that would go), and what stays, in sentences.
    """
    folder = os.path.join(root, "venvs")
    gone: List[str] = []
    notes: List[str] = []
    if os.path.isdir(folder):
        with nullcontext() if check_only else exclusive(folder):
            # What the role's tasks sent for an installation that was cut off goes, too.
            sent = [name for name in os.listdir(folder) if name.startswith(".sent-")]
            ours = sorted([*environments(folder), *sent])
            names, notes = _remove(root, ours, check_only)
            tools = [name for name in TOOLS if os.path.exists(os.path.join(folder, name))]
            for name in [] if check_only else tools:
                _delete(os.path.join(folder, name))
            names += tools
            unused = [path for path, name in links(root).items() if name not in {*ours} - {*names}]
            for path in [] if check_only else unused:
                os.unlink(path)
            gone = sorted(unused + [os.path.join(folder, name) for name in names])
        # Who waits for the lock meanwhile makes the folder again.
        if os.listdir(folder) == [".lock"] and not (check_only or os.path.ismount(folder)):
            shutil.rmtree(folder)
    others = set(os.listdir(root) if os.path.isdir(root) else []) - {"venvs"}
    others -= {os.path.basename(path) for path in gone}
    notes += [f"{root} stays, with {', '.join(sorted(others))}."] if others else []
    return gone, notes


def _remove(root: str, names: List[str], check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments; returns the names that are gone, and why others are not."""
    used = in_use(root, names)
    notes = [f"{name} stays: {used[name]} uses it." for name in sorted(used)]
    unused = [name for name in names if name not in used]
    if check_only:
        return unused, notes
    gone = []
    for name in unused:
        try:
            discard(os.path.join(root, "venvs", name))
        except OSError as error:
            notes.append(f"{name} could not be removed: {error}.")
        else:
            gone.append(name)
    return gone, notes


def discard(folder: str) -> None:
    """Remove an environment; first its marker: what is half removed must not pass for finished."""
    marker = os.path.join(folder, MARKER)
    if os.path.lexists(marker):
        os.unlink(marker)
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def _delete(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def shared_with(folder: str) -> str:
    """Why other machines may use ``folder``, whose processes are not seen here; empty if not."""
    path = os.path.realpath(folder)
    point, kind = "", ""
    with open(MOUNTS, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            before, _, after = line.partition(" - ")
            mounted = re.sub(r"\\([0-9]{3})", lambda m: chr(int(m.group(1), 8)), before.split()[4])
            inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
            if inside and len(mounted) >= len(point):  # of two at one place, the later one is seen
                point, kind = mounted, after.split()[0]
    if kind not in LOCAL:
        return f"other machines may use them (filesystem {kind})"
    return "it is a mount of its own, which others may use" if point == path else ""


def in_use(root: str, names: List[str]) -> Dict[str, str]:
    """Those of ``names`` that a process of this machine uses, and which.

    What it has loaded is in its map of memory; ``/proc/PID/exe`` is the host's Python.
    """
    places = {os.path.join(path, "").encode() for path in (root, os.path.realpath(root))}
    used: Dict[str, str] = {}
    for pid in filter(str.isdigit, os.listdir(PROC)):
        process = os.path.join(PROC, pid)
        command = _read(os.path.join(process, "cmdline")) or b""
        loaded = _read(os.path.join(process, "maps"))
        text = b"\0".join((command, loaded or b"", _read(os.path.join(process, "cwd")) or b""))
        # Whatever it has loaded, another user's process shows only its command.
        hidden = loaded is None and any(place in command for place in places)
        for name in names:
            if hidden or name.encode() in text:
                program = os.path.basename(command.split(b"\0")[0]).decode(errors="replace")
                used.setdefault(name, f"process {pid} ({program})")
    # What a running process uses needs what is below it.
    below = with_bases(os.path.join(root, "venvs"), used) & set(names)
    return {**dict.fromkeys(below, "an environment in use"), **used}


def _read(path: str) -> Optional[bytes]:
    """A file or link of a process: None where it is hidden, empty where the process has ended."""
    try:
        if os.path.islink(path):
            return os.readlink(path).encode()
        with open(path, "rb") as stream:
            return stream.read()
    except PermissionError:
        return None
    except OSError:
        return b""
