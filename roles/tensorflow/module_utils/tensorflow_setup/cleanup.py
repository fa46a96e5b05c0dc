"""Old environments: which of them nobody needs, and their removal."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import nullcontext
from typing import Dict, List, Optional, Set, Tuple

from .installation import exclusive
from .places import MARKER, Place, read_marker

#: Names that this role gives; other folders are left alone.
NAMES = re.compile(r"(tensorflow-[^/]+-py\d+\.\d+|extra)-[0-9a-f]{12}")
#: What the role's tasks send for an installation, a folder for each inventory host.
SENT = ".sent-"
PROC = "/proc"
MOUNTS = "/proc/self/mountinfo"
#: Filesystems that no other machine works on at the same time.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay"}


def environments(folder: str) -> Dict[str, Optional[float]]:
    """The role's environments by name: when each was linked last, None for an unfinished one."""
    found: Dict[str, Optional[float]] = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if NAMES.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path):
            marked = read_marker(path) is not None
            found[name] = os.stat(os.path.join(path, MARKER)).st_mtime if marked else None
    return found


def linked(root: str) -> Dict[str, str]:
    """The links of ``root`` into ``venvs/``, by path: the name of the environment."""
    folder = os.path.realpath(os.path.join(root, "venvs"))
    found = {}
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if os.path.islink(path) and os.path.dirname(os.path.realpath(path)) == folder:
            found[path] = os.path.basename(os.path.realpath(path))
    return found


def bases(folder: str, names: Set[str]) -> Set[str]:
    """The environments on which those of ``names`` were put."""
    markers = [read_marker(os.path.join(folder, name)) or {} for name in names]
    return {marker["base"] for marker in markers if "base" in marker}


def leftovers(place: Place, keep: int) -> Tuple[List[str], List[str]]:
    """The environments that nobody needs once the link is switched, and why others stay.

    While the lock is held, an unfinished environment is one that nobody works on.
    """
    found = environments(place.folder)
    others = {name for path, name in linked(place.root).items() if path != place.link}
    needed = others | bases(place.folder, others) | {place.base.name}
    before = os.path.basename(place.target() or "")
    # The one that the link leaves now was in use last, whatever its marker's time is.
    by_use = sorted(
        (name for name, time in found.items() if time is not None),
        key=lambda name: (name == before, found[name]),
        reverse=True,
    )
    kept = {place.wanted.name}
    for name in by_use:
        if len(kept) < keep and name not in needed | bases(place.folder, kept):
            kept.add(name)
    names = sorted(set(found) - needed - kept - bases(place.folder, kept))
    if not keep or not names:
        return [], []
    shared = shared_with(place.folder)
    if shared:
        return [], [f"{len(names)} old environments in {place.folder} stay: {shared}."]
    used = in_use(place.root, place.folder, names)
    stay = [f"{name} stays: {used[name]} uses it." for name in names if name in used]
    return [name for name in names if name not in used], stay


def remove(folder: str, names: List[str]) -> Tuple[List[str], List[str]]:
    """Remove environments; returns the names that are gone, and why others are not."""
    gone, notes = [], []
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            continue
        try:
            # First its marker: what is half removed must not pass for finished.
            if os.path.lexists(os.path.join(path, MARKER)):
                os.unlink(os.path.join(path, MARKER))
            shutil.rmtree(path)
        except OSError as error:
            notes.append(f"{name} could not be removed: {error}.")
        else:
            gone.append(name)
    return gone, notes


def remove_all(root: str, check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments and links, but for what a running process uses; returns the paths that
    are gone (with ``check_only``, that would go), and what stays, in sentences.
    """
    folder = os.path.join(root, "venvs")
    gone: List[str] = []
    stays: List[str] = []
    if os.path.isdir(folder):
        with nullcontext() if check_only else exclusive(folder):
            gone, stays = _remove_all(root, folder, check_only)
        # Who waits for the lock meanwhile makes the folder again.
        if os.listdir(folder) == [".lock"] and not (check_only or os.path.ismount(folder)):
            shutil.rmtree(folder)
    others = set(os.listdir(root) if os.path.isdir(root) else []) - {"venvs"}
    others -= {os.path.basename(path) for path in gone}
    stays += [f"{root} stays, with {', '.join(sorted(others))}."] if others else []
    return sorted(gone), stays


def _remove_all(root: str, folder: str, check_only: bool) -> Tuple[List[str], List[str]]:
    found = sorted(environments(folder))
    sent = [name for name in os.listdir(folder) if name.startswith(SENT)]
    used = in_use(root, folder, found)
    stays = [f"{os.path.join(folder, name)} stays: {used[name]} uses it." for name in sorted(used)]
    strange = sorted(set(os.listdir(folder)) - set(found) - set(sent) - {".lock"})
    stays += [f"{folder} stays, with {', '.join(strange)}."] if strange else []
    links = [path for path, name in linked(root).items() if name not in used]
    names = sent + [name for name in found if name not in used]
    if not check_only:
        for path in links:
            os.unlink(path)
        names, failures = remove(folder, names)
        stays += failures
    return links + [os.path.join(folder, name) for name in names], stays


def shared_with(folder: str) -> str:
    """Why other machines may use ``folder``, whose processes are not seen here; empty if not."""
    path = os.path.realpath(folder)
    point, kind = "", ""
    with open(MOUNTS, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            before, _, after = line.partition(" - ")
            mounted = re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), before.split()[4])
            inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
            if inside and len(mounted) >= len(point):  # of two at one place, the later one is seen
                point, kind = mounted, after.split()[0]
    if kind not in LOCAL:
        return f"other machines may use them (filesystem {kind})"
    return "it is a mount of its own, which others may use" if point == path else ""


def in_use(root: str, folder: str, names: List[str]) -> Dict[str, str]:
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
    below = bases(folder, set(used)) & set(names)
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
