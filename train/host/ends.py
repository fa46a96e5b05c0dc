"""Why a rank's script ended: what its exit code, its log, the kernel's counters and its disk tell.

Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Dict, Optional, Tuple

#: The causes in ``state.json``. What the control node alone can see has words of its own there.
EXIT = "exit"  # an exit code other than 0
SIGNAL = "signal"  # killed by a signal that did not come from the launcher
MEMORY = "memory"  # killed by the kernel, which had no memory left
DISK = "disk"  # its disk was full
START_TIMEOUT = "start_timeout"  # it did not open its port
HUNG = "hung"  # it made no step any more
MAX_RUNTIME = "max_runtime"
STOPPED = "stopped"  # it was told to end
SUPERVISOR = "supervisor"  # its supervisor was killed
REBOOT = "reboot"  # its host was restarted
UNSTARTABLE = "unstartable"  # the interpreter could not be run
FENCED = "fenced"  # another job holds its port or GPU

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_MEMORY = re.compile(r"^(?:MemoryError|.*\bAllocator \(\S+\) ran out of memory|.*\bbad_alloc\b)")
#: A disk with less than this many bytes free is full: a log line or a state no longer fits.
_FULL = 65_536


def _counter(path: str, name: str) -> int:
    """Return the number after ``name`` in a file of the kernel's; 0 where there is none."""
    try:
        with open(path, encoding="ascii") as stream:
            lines = (line.split() for line in stream)
            return next((int(words[1]) for words in lines if words[:1] == [name]), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _memory_files(cgroups: str, mounted: str) -> Dict[str, str]:
    """Return where the control group counts its kills: for version 2 and for version 1."""
    paths = {"": "", "memory": ""}
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in paths:
                paths[controller] = path.strip("/")
    found = {}
    for folder, path, name in (
        (mounted, paths[""], "memory.events"),
        (os.path.join(mounted, "memory"), paths["memory"], "memory.oom_control"),
    ):
        # In a container the group may be mounted as the root of the tree.
        for candidate in (os.path.join(folder, path, name), os.path.join(folder, name)):
            if os.path.exists(candidate):
                found[name] = candidate
                break
    return found


def memory_kills(mounted: str = "/sys/fs/cgroup") -> Tuple[int, int]:
    """Return how often the kernel has killed for memory: in this process's control group, and on
    the whole machine.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as stream:
            files = _memory_files(stream.read(), mounted)
    except (OSError, ValueError):
        files = {}
    group = sum(_counter(path, "oom_kill") for path in files.values())
    return group, _counter("/proc/vmstat", "oom_kill")


def disk_full(folder: str) -> bool:
    """Tell whether the disk of ``folder`` has no room for another file."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL or (disk.f_files > 0 and disk.f_favail == 0)


def explain(
    returncode: int, log: str, killed: Tuple[int, int], peak_mb: int, full: str
) -> Tuple[Optional[str], str]:
    """Return the cause of an end that came by itself, and the reason in words.

    Args:
        returncode: as subprocess gives it: negative for a signal.
        log: the last lines of the rank's output.
        killed: how often the kernel has killed for memory since the rank's start; see
            ``memory_kills``.
        peak_mb: the most main memory that the rank held, in MiB.
        full: the folder whose disk is full; empty where none is.

    Returns:
        No cause and an empty reason for exit code 0.
    """
    if returncode == 0:
        return None, ""
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if _EXCEPTION.match(line)]
    if returncode < 0:
        name = signal.Signals(-returncode).name
        reason = "was killed by %s (signal %d)" % (name, -returncode)
        if returncode == -signal.SIGKILL and any(killed):
            whose = "its control group" if killed[0] else "its host"
            return MEMORY, "%s because %s had no memory left; it held up to %d MiB" % (
                reason,
                whose,
                peak_mb,
            )
        return SIGNAL, reason
    reason = "exited with code %d%s" % (returncode, ": " + said[-1][:300] if said else "")
    if full or any(_NO_SPACE.search(line) for line in said[-1:]):
        return DISK, "%s; the disk of %s is full" % (reason, full) if full else reason
    if any(_MEMORY.match(line) for line in said[-1:]):
        return MEMORY, "%s; it held up to %d MiB" % (reason, peak_mb)
    return EXIT, reason
