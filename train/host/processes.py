"""What /proc tells about processes and ports, and how to end the processes of a rank.

Linux only, standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Dict, List, Optional, Set


def boot_id() -> str:
    """Return the id that the kernel drew at this host's last start."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def machine() -> str:
    """Return what is the same for two processes that share this machine's ports."""
    return "/".join((boot_id(), socket.gethostname(), os.readlink("/proc/self/ns/net")))


def start_time(pid: int) -> Optional[int]:
    """Return when process ``pid`` began, in clock ticks since the boot; None if it has ended.

    A zombie has ended. Pid and start time together name a process for as long as a host is up.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            # The second field, the name in parentheses, may hold anything.
            fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_stopped(pid: Optional[int]) -> bool:
    """Tell whether a process is stopped by a signal or a debugger."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_alive(pid: Optional[int], started: Optional[int]) -> bool:
    """Tell whether the process ``pid`` that began at ``started`` (clock ticks) is still there."""
    return pid is not None and started is not None and start_time(pid) == started


def marked(name: str, value: str) -> List[int]:
    """Return the pids whose environment held ``name=value`` when their program began.

    The environment is inherited by all children, also by those that went into a session of their
    own. Processes of other users cannot be read and are left out, as is the caller.
    """
    mark = ("%s=%s" % (name, value)).encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as stream:
                if mark in stream.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def kill_marked(name: str, value: str, timeout: float = 5.0) -> List[int]:
    """Kill (SIGKILL) every process marked with ``name=value`` and wait until they are gone.

    Args:
        timeout: seconds to wait.

    Returns:
        The pids that are still there (for example in uninterruptible sleep).
    """
    deadline = time.monotonic() + timeout
    while True:
        left = marked(name, value)
        for pid in left:
            send(pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def send(pid: int, signum: int, group: bool = False) -> bool:
    """Send a signal to a process, or to its process group; False if it is gone."""
    try:
        (os.killpg if group else os.kill)(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _listening() -> Dict[int, Set[str]]:
    """Return the inodes of listening TCP sockets by port."""
    sockets: Dict[int, Set[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as stream:
                next(stream)
                for line in stream:
                    fields = line.split()
                    if fields[3] == "0A":
                        port = int(fields[1].rpartition(":")[2], 16)
                        sockets.setdefault(port, set()).add(fields[9])
        except FileNotFoundError:
            continue
    return sockets


def is_listening(port: int) -> bool:
    """Tell whether a process of this host listens on TCP ``port``, at any address."""
    return port in _listening()


def listener(port: int) -> str:
    """Return who listens on TCP ``port``: ``pid 12 (python3 x.py)``, or that it is unknown.

    The processes of other users can only be named by root.
    """
    wanted = {"socket:[%s]" % inode for inode in _listening().get(port, set())}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            for descriptor in os.listdir("/proc/%s/fd" % entry):
                if os.readlink("/proc/%s/fd/%s" % (entry, descriptor)) in wanted:
                    with open("/proc/%s/cmdline" % entry, "rb") as stream:
                        command = stream.read().replace(b"\0", b" ").decode(errors="replace")
                    return "pid %s (%s)" % (entry, command.strip()[:120])
        except OSError:
            continue
    return "a process of another user"


def can_bind(port: int) -> bool:
    """Tell whether a server can bind TCP ``port`` on all addresses, as TensorFlow's does.

    SO_REUSEADDR is set as gRPC sets it: connections in TIME_WAIT do not count.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
