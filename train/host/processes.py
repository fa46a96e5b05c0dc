"""Lists processes from /proc, and ends the processes of a rank."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

#: The folder in which the kernel lists processes.
PROC = "/proc"
#: Seconds to wait for killed processes to end.
KILL_S = 5.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@functools.lru_cache(maxsize=None)
def boot_id() -> str:
    """Return the boot id of this host's kernel."""
    with open(os.path.join(PROC, "sys/kernel/random/boot_id"), encoding="ascii") as stream:
        return stream.read().strip()


def machine() -> str:
    """Return an id that is the same for processes that share this machine's ports."""
    return "/".join((boot_id(), socket.gethostname(), os.readlink("/proc/self/ns/net")))


def is_of_this_host(noted: str) -> bool:
    """Return whether a stored result of ``machine`` is from this host, even before a reboot."""
    return noted.split("/")[1:2] == [socket.gethostname()]


def numbers(*parts: str) -> List[str]:
    """Return the names of a folder's entries that are numbers; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(os.path.join(*parts)) if name.isdigit()]
    return []


def pids() -> List[int]:
    """Return the ids of all processes of this host."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def read(*parts: str) -> bytes:
    """Return the contents of a file, mostly in /proc or /sys; empty if it cannot be read."""
    with contextlib.suppress(OSError), open(os.path.join(*parts), "rb") as stream:
        return stream.read()
    return b""


def read_text(*parts: str) -> str:
    """Return the contents of a file as text, see ``read``."""
    return read(*parts).decode(errors="replace")


def control_groups(
    listed: str, controller: str, mounted: str = "/sys/fs/cgroup"
) -> Iterator[List[str]]:
    """Yield the folders of a process's control group and its parents, for each possible tree.

    ``listed`` is the contents of the process's ``cgroup`` file. In a container, the file may
    contain the host's path, although the root of the mounted tree is the container's own group.
    """
    for line in listed.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        groups = [os.path.normpath("/" + path).strip("/")]
        while groups[-1]:
            groups.append(os.path.dirname(groups[-1]))
        # Version 1, or version 2, which has no controllers in the line.
        trees = (controllers, "cpu,cpuacct", controller) if controllers else ("", "unified")
        for tree in trees:
            yield [os.path.join(mounted, tree, group) for group in groups]


def waited(thread: str) -> float:
    """Return the seconds that a thread (a path in /proc) has waited for a core, or 0."""
    words = read(PROC, thread, "schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    return read_text(PROC, str(pid), "cmdline").replace("\0", " ").strip()


def stat(thread: object) -> List[str]:
    """Return the fields after the name in ``stat`` of a process or thread (a path in /proc).

    The list is empty if the process or thread has ended. Raise OSError if that is unknown.
    """
    try:
        # Not with a stream, which takes nearly twice as long: a host may have many processes.
        descriptor = os.open("%s/%s/stat" % (PROC, thread), os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(descriptor, 4096).decode(errors="replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return []
    return line.rpartition(")")[2].split()  # the name may contain any characters


def start_time(pid: int) -> Optional[int]:
    """Return the start of process ``pid`` in clock ticks since the boot; None if it has ended."""
    fields = stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


@functools.lru_cache(maxsize=None)
def init_start() -> Optional[int]:
    """Return the start of process 1 in clock ticks, which differs after a container was restarted.

    Without process 1, this process would also have ended. The result is None if processes of other
    users are hidden.
    """
    with contextlib.suppress(OSError):
        return start_time(1)
    return None


def is_stopped(pid: Optional[int]) -> bool:
    """Return whether a process is stopped by a signal or a debugger, as far as that is known."""
    with contextlib.suppress(OSError):
        return stat(pid)[:1] in (["T"], ["t"])
    return False


def is_alive(pid: Optional[int], started: Optional[int]) -> bool:
    """Return whether the process ``pid`` that began at ``started`` (clock ticks) is running."""
    return pid is not None and started is not None and start_time(pid) == started


def environment(pid: Any) -> Dict[str, str]:
    """Return the initial environment of a process of this user; empty if it has ended."""
    variables = os.fsdecode(read(PROC, str(pid), "environ")).split("\0")
    return dict(variable.partition("=")[::2] for variable in variables if variable)


def marked(name: str) -> List[Tuple[int, str]]:
    """Return (pid, value) for this user's processes whose initial environment contains ``name``."""
    values = [(pid, variable(pid, name)) for pid in pids()]
    return [(pid, value) for pid, value in values if value]


def variable(pid: int, name: str) -> Optional[str]:
    """Return a variable of a process's initial environment.

    Return an empty string if it is not set or belongs to another user. Return None if it is
    unknown, because the process has ended, is just executing a program, or has no environment.
    """
    try:
        with open(os.path.join(PROC, str(pid), "environ"), "rb") as stream:
            variables = stream.read()
    except PermissionError:
        return ""
    except OSError:
        return None
    if not variables:
        return None
    rest = (b"\0" + variables).partition(("\0%s=" % name).encode())[2]
    return os.fsdecode(rest.partition(b"\0")[0])


def opened(pid: int) -> Iterator[str]:
    """Yield the paths of the files that a process of this user has open."""
    folder = os.path.join(PROC, str(pid), "fd")
    for name in numbers(folder):
        with contextlib.suppress(OSError):
            yield os.readlink(os.path.join(folder, name))


def shares_mounts(pid: int) -> bool:
    """Return whether a process has the same mount namespace as this one."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/ns/mnt" % pid) == os.readlink("/proc/self/ns/mnt")
    return False


class Process(NamedTuple):
    """A live process: ids of its parent and session, and its start in clock ticks."""

    parent: int
    session: int
    start: int


def snapshot(without: Collection[int] = ()) -> Dict[int, Process]:
    """Return all processes of this host by pid, but no zombies, and none of ``without``."""
    found = {}
    for pid in set(pids()).difference(without):
        with contextlib.suppress(OSError, IndexError):
            fields = stat(pid)
            # If only the first thread has ended, the process still has other threads.
            if fields[0] not in "ZX" or int(fields[17]) > 1:
                found[pid] = Process(int(fields[1]), int(fields[3]), int(fields[19]))
    return found


def in_group(group: int) -> List[int]:
    """Return the processes of a process group.

    For all processes of a host, this takes a tenth of the time of reading their files in /proc.
    """
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):  # it has ended
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def session(pid: int) -> int:
    """Return the session of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return 0


def by_session() -> Dict[int, List[int]]:
    """Return the processes of this host by session, without those of which it is unknown."""
    found: Dict[int, List[int]] = {}
    for pid in pids():
        found.setdefault(session(pid), []).append(pid)
    found.pop(0, None)  # they have ended, or belong to a session outside this container
    return found


def descendants(roots: Collection[int], processes: Dict[int, Process]) -> Set[int]:
    """Return the pids of all descendants of ``roots``, without ``roots``."""
    children: Dict[int, List[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: Set[int] = set()
    new = list(roots)
    while new:
        new = [pid for parent in new for pid in children.get(parent, ()) if pid not in found]
        found.update(new)
    return found - set(roots)


def adopt() -> None:
    """Become the parent of all descendants whose own parent ends, instead of process 1."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def request_signal_at_parent_end(signum: int) -> None:
    """Request that this process receives ``signum`` when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


def ending_with_parent(signum: int) -> Callable[[], None]:
    """Return a function that a child calls to receive ``signum`` when this process ends."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def reap() -> Dict[int, int]:
    """Return the status of each ended child by pid.

    Raise ChildProcessError if there is no child (after ``adopt``, no descendant).
    """
    found: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if found:
                return found  # no further child
            raise
        if not pid:
            return found
        found[pid] = status


def adopted() -> Set[int]:
    """Return the live descendants of this process, which has called ``adopt``; reap its children.

    Without a child it has no descendants, and the processes of the host are not listed.
    """
    try:
        reap()
    except ChildProcessError:
        return set()
    return descendants([os.getpid()], snapshot())


def end_descendants() -> List[int]:
    """Kill all descendants of this process, which has called ``adopt``; return any that remain."""
    deadline = time.monotonic() + KILL_S
    while True:  # processes started meanwhile are found in the next iteration
        # Before /proc is read, to catch processes that live for a shorter time than that takes.
        for word in read_text("/proc/self/task/%d/children" % os.getpid()).split():
            _kill(int(word))
        left = adopted()
        for pid in left:
            _kill(pid)
        try:
            reap()
        except ChildProcessError:
            return []
        if time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.001)


def _kill(pid: int) -> None:
    """Kill a process of a rank, and its process group if it is in another session."""
    with contextlib.suppress(OSError):
        group = os.getpgid(pid)
        if os.getsid(pid) != os.getsid(0):
            # The whole group at once, so that none of its processes can fork meanwhile.
            send(group, signal.SIGKILL, group=True)
    send(pid, signal.SIGKILL)


def send(pid: int, signum: int, group: bool = False) -> None:
    """Send a signal to a process or its group, unless it has ended or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signum)


def run(command: Sequence[str], **given: Any) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and return its exit code and output.

    ``given`` are further arguments of ``subprocess.run``.
    """
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **given
    )


def wait_until(condition: Callable[[], object], timeout: float, pause: float = 0.05) -> bool:
    """Wait up to ``timeout`` seconds for ``condition`` to be true, and return whether it is."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
