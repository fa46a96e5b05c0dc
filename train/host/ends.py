"""Determines why a rank's script ended: from exit code, log, kernel counters and disk space."""

from __future__ import annotations

import os
import re
import signal
from typing import List, Optional, Tuple

from . import end_causes, log_shapes, pace, plain_text, terminal
from .processes import control_groups, read_text

_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
#: Errors of Python and its libraries; C++ prints them before it aborts.
_MEMORY = re.compile(
    r"^[\w.]*MemoryError\b|\bbad_alloc\b|\bDefaultCPUAllocator: can't allocate memory\b|"
    r"\[Errno 12\] Cannot allocate memory"
)
#: PyTorch's error, whose name may be that of main memory.
_GPU_MEMORY = re.compile(r"\b(?:CUDA|HIP)(?: error:)? out of memory\b")
#: Errors of a script after the kernel has killed one of its processes.
_CHILD_KILLED = re.compile(
    r"\bkilled by signal: Killed\b|\bexited unexpectedly\b|\bterminated abruptly\b|"
    r"\bSIGKILL\b|\b(?:exit ?code|exit status):? -9\b"
)
_ABORTED = re.compile(
    r"^(?:%s|%s).*\bbad_alloc\b" % (log_shapes.TERMINATED, log_shapes.WHAT),
)
#: TensorFlow's error, which it also uses for quotas and message sizes. The subject may be on
#: another line, with the device.
_EXHAUSTED = re.compile(r"^[\w.]*ResourceExhaustedError\b|\bRESOURCE_EXHAUSTED\b")
_NO_MEMORY = re.compile(r"\bOOM when\b|\b[Oo]ut of memory\b|\b[Ff]ailed to allocate memory\b")
_DEVICE = re.compile(r"\bdevice:([A-Z]+):")
#: Errors of downloads only: of Keras, urllib, urllib3 (requests), aiohttp, httpx, TensorFlow's
#: files at gs:// and Hugging Face's libraries. Ranks that lose one another have different errors.
_DOWNLOAD = re.compile(
    r"URL fetch failure on|<urlopen error|\bHTTPS?ConnectionPool\(|^aiohttp\.|^httpx\.|"
    r"\blibcurl code|[Cc]ouldn't connect to '?https?://|^[\w.]*\bDownloadError\b"
)
_UNREACHED = re.compile(
    r"Name or service not known|[Nn]ame resolution|No address associated|[Rr]esolve host|"
    r"Failed to resolve|[Nn]etwork is unreachable|No route to host|Connection refused|"
    r"[Tt]imed out|[Cc]ould(?:n't| not) connect|Cannot connect|All connection attempts failed"
)
_SERVER = re.compile(
    r"\bhttps?://(?:[^/\s@]*@)?(?P<a>[\w.-]+)|ConnectionPool\(host='(?P<b>[^']+)'|"
    r"[Rr]esolve host: '?(?P<c>[\w.-]+)|Cannot connect to host (?P<d>[\w.-]+)"
)
_OF_GPU = "its GPU was out of memory"
#: The highest exit code of a shell whose command was killed by a signal.
_LAST_SIGNAL = 192
#: Signals caused by the process itself, in native code.
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
#: Maximum length of a reason.
MAX_REASON = 300
#: A disk with less than this many bytes free is full: a log line or a state no longer fits.
_FULL = 65_536
#: Bytes of a file that is written to see whether that is possible.
_SMALL = 4096


def _kills(path: str) -> int:
    found = re.search(r"^oom_kill ([0-9]+)$", read_text(path), re.MULTILINE)
    return int(found.group(1)) if found else 0


def memory_kills(mounted: str = "/sys/fs/cgroup") -> Tuple[int, int]:
    """Return how many processes the kernel has killed because memory ran out.

    The first number is for this control group, the second for the whole host.
    """
    trees = list(control_groups(read_text("/proc/self/cgroup"), "memory", mounted))
    group = 0
    for name in ("memory.events", "memory.oom_control"):  # cgroup versions 2 and 1
        paths = [os.path.join(folder, name) for tree in trees for folder in (tree[0], tree[-1])]
        group += _kills(next(filter(os.path.exists, paths), ""))
    return group, _kills("/proc/vmstat")


def disk_full(folder: str) -> bool:
    """Return whether the disk of ``folder`` has no room for another file."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL or (disk.f_files > 0 and disk.f_favail == 0)


def can_write(folder: str) -> bool:
    """Return whether a small file can be written in ``folder``: its disk or a quota may be full."""
    import tempfile  # slow to import

    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_SMALL))
    except OSError:
        return False
    return not disk_full(folder)


def _signal_name(number: int) -> str:
    """Return a text such as ``SIGTERM (signal 15)``, or ``signal 40`` if it has no name."""
    try:
        return "%s (signal %d)" % (signal.Signals(number).name, number)
    except ValueError:
        return "signal %d" % number


def _out_of_memory(error: List[str], held: str, has_gpus: bool) -> str:
    """Return a text about the memory that ran out, or an empty string for other errors.

    If main memory ran out, the text is ``held``.
    """
    if _GPU_MEMORY.search(error[0]):
        return _OF_GPU
    if _MEMORY.search(error[0]):
        return held
    if _EXHAUSTED.search(error[0]):
        for line in filter(_NO_MEMORY.search, error):
            # The last device belongs to the memory; a compiled function has none.
            on_host = _DEVICE.findall(line)[-1:] == ["CPU"] or not has_gpus
            return held if on_host else _OF_GPU
    return ""


def _unreached_server(error: List[str], before: List[str]) -> str:
    """Return the server that a download could not reach, or an empty string for other errors.

    If the log does not contain the server's name, return ``its server``.
    """
    text = "\n".join(error)
    if not (_DOWNLOAD.search(error[0]) and _UNREACHED.search(text)):
        return ""
    for line in [text, *reversed(before)]:  # Python's own exception does not contain the server
        found = _SERVER.search(line)
        if found:
            return str(next(filter(None, found.groups())))
    return "its server"


def explain(
    returncode: int,
    log: str,
    killed: Tuple[int, int],
    peak_mb: int,
    full: str,
    has_gpus: bool = True,
) -> Tuple[Optional[str], str]:
    """Return why a script ended that the launcher did not stop: the cause and the reason.

    For exit code 0, the cause is None and the reason is empty.

    Args:
        returncode: as in subprocess, negative for a signal.
        log: the last lines of the rank's output.
        killed: by how much each number of ``memory_kills`` has grown since the rank's start.
        peak_mb: the peak main memory of the rank, in MiB.
        full: the folder whose disk is full; empty if there is none.
        has_gpus: whether the rank may have used GPUs.
    """
    if returncode == 0:
        return None, ""
    lines = terminal.lines_of(log.encode("utf-8", "replace"))
    held = "its peak memory use was %d MiB" % peak_mb
    from . import tracebacks  # slow to import

    if returncode < 0:
        return _explain_signal(-returncode, lines, killed, held)
    found = tracebacks.ending(lines, returncode)
    prefix = "exited with code %d" % returncode
    if found is None or (not found.certain and 128 < returncode <= _LAST_SIGNAL):
        if full:
            return end_causes.DISK, "%s; the disk that holds %s is full" % (prefix, full)
        return end_causes.EXIT, prefix
    prefix += ": " if found.certain else "; its last line: "
    if found.owner not in (tracebacks.SCRIPT, tracebacks.IGNORED):
        prefix += found.owner + ": "
    if full or _NO_SPACE.search(found.error[0]):
        return end_causes.DISK, _reason(
            prefix, found.text, full and "the disk that holds %s is full" % full
        )
    short = _out_of_memory(found.error, held, has_gpus)
    if short:
        return end_causes.MEMORY, _reason(prefix, found.brief, short)
    if any(killed) and any(map(_CHILD_KILLED.search, found.error)):
        whose = "control group" if killed[0] else "host"
        killer = "the kernel killed one of its processes because its %s was out of memory" % whose
        return end_causes.MEMORY, _reason(prefix, found.text, killer)
    server = _unreached_server(found.error, found.before)
    if server:
        blamed = "this is not an error in the script: the host cannot reach %s" % server[:100]
        return end_causes.DOWNLOAD, _reason(prefix, found.text, blamed)
    return end_causes.EXIT, _reason(prefix, found.text, "")


def _reason(prefix: str, text: str, suffix: str) -> str:
    """Join the parts of a reason in one line, and shorten ``text`` if the line would be too long.

    ``suffix`` is cut off at half of MAX_REASON.
    """
    from . import tracebacks

    suffix = suffix and "; " + plain_text.clean(suffix, MAX_REASON // 2)
    room = max(100, MAX_REASON - len(prefix) - len(suffix))
    return prefix + tracebacks.bounded(plain_text.clean(text, MAX_REASON), room) + suffix


def _explain_signal(
    number: int, lines: List[str], killed: Tuple[int, int], held: str
) -> Tuple[str, str]:
    """Return the cause and the reason if a signal ended the script."""
    reason = "was killed by %s" % _signal_name(number)
    if number == signal.SIGKILL and any(killed):
        whose = "its control group" if killed[0] else "its host"
        return end_causes.MEMORY, "%s because %s was out of memory; %s" % (reason, whose, held)
    if number == signal.SIGABRT and any(_ABORTED.search(line.strip()) for line in lines):
        return end_causes.MEMORY, "%s because memory allocation failed (bad_alloc); %s" % (
            reason,
            held,
        )
    if number not in CRASHES:
        return end_causes.SIGNAL, reason
    from . import tracebacks

    place = pace.crashed_in("\n".join(lines))
    suffix = place and "its Python code was at " + place
    said = tracebacks.abort_of(lines) if number == signal.SIGABRT else ""
    if said:
        return end_causes.SIGNAL, _reason(reason + ": ", said, suffix)
    return end_causes.SIGNAL, _reason(reason, "", suffix)
