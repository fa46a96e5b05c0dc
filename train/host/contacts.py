"""Checks from TCP connections whether a rank is in contact with the others of its gang.

A rank whose script does not join the others trains alone and appears to succeed. Its host detects
that: the rank makes steps, but never has a connection to another rank. A connection to any port of
another rank counts, because scripts may exchange data in their own ways. So does any connection to
the rank's own port. A rank that opens its port may exchange data rarely, so it is observed for
longer, unless its framework keeps the connections: JAX and PyTorch do, and TensorFlow once it is
loaded. With these, a rank whose steps are unknown is alone if it opened its port and ended without
any connection.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Set

from . import frameworks, ports, processes

_ESTABLISHED = "01"
#: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK and CLOSING: recently open.
_CLOSING = ("04", "05", "06", "08", "09", "0B")
#: The prefix of an IPv4 address in an IPv6 one.
_MAPPED = bytes(10) + b"\xff\xff"
#: Observations of a rank that makes steps before it is judged; seconds between two of them, at
#: first and later; and the seconds after which the later interval applies.
LOOKS, EVERY, LATER_EVERY, LATER = 4, 0.5, 5.0, 60.0
#: Observations before a rank without known steps is judged.
_LOOKS_WITHOUT_STEPS = 20
#: Seconds of steps before a rank is judged that has opened its port but needs no lasting contact.
_RARELY = 10.0


class TcpConnection(NamedTuple):
    """A line of /proc/net/tcp; addresses are packed."""

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    inode: str


def _packed(text: str) -> bytes:
    """Parse an address in the kernel's format: hexadecimal words in the machine's byte order."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return data[12:] if data.startswith(_MAPPED) else data


def connections(*states: str) -> List[TcpConnection]:
    """Return this host's TCP connections in one of ``states``, as written in /proc/net/tcp."""
    found = []
    for table in ("net/tcp", "net/tcp6"):
        for line in processes.read_text(processes.PROC, table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] in states:
                local, _, local_port = fields[1].partition(":")
                remote, _, remote_port = fields[2].partition(":")
                ends = (_packed(local), int(local_port, 16), _packed(remote), int(remote_port, 16))
                found.append(TcpConnection(*ends, fields[9]))
    return found


def addresses_of(hosts: Collection[str]) -> Set[bytes]:
    """Return the packed addresses of ``hosts``; hosts that cannot be resolved are skipped."""
    found = set()
    for host in hosts:
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, place in socket.getaddrinfo(host, None):
                if family in (socket.AF_INET, socket.AF_INET6):
                    address = socket.inet_pton(family, str(place[0]).partition("%")[0])
                    found.add(address[12:] if address.startswith(_MAPPED) else address)
    return found


def peers_of(tf_config: Mapping[str, Any]) -> Set[str]:
    """Return the hosts of the other ranks of a gang, from the rank's TF_CONFIG."""
    task = tf_config.get("task", {})
    return {
        place.rpartition(":")[0].strip("[]")
        for kind, places in tf_config.get("cluster", {}).items()
        for index, place in enumerate(places)
        if (kind, index) != (task.get("type"), task.get("index"))
    }


def _ports_of(tf_config: Mapping[str, Any]) -> Set[int]:
    """Return the ports of all ranks of a gang."""
    places = [place for kind in tf_config.get("cluster", {}).values() for place in kind]
    ports = (str(place).rpartition(":")[2] for place in places)
    return {int(port) for port in ports if port.isdigit()}


def _has_tensorflow(pids: Collection[int]) -> bool:
    return any(b"libtensorflow" in processes.read(processes.PROC, str(pid), "maps") for pid in pids)


class Contacts:
    """Observes a rank's connections from its start until its first contact with another rank.

    ``has_contact`` is whether it has had one.
    """

    def __init__(
        self,
        port: Optional[int],
        tf_config: Mapping[str, Any],
        framework: str = frameworks.TENSORFLOW,
    ) -> None:
        self._port, self._hosts = port, peers_of(tf_config)
        self._ports = _ports_of(tf_config)
        self._addresses: Optional[Set[bytes]] = None
        self._asked = False
        self._first: Optional[float] = None  # time of the first observation
        self._since: Optional[float] = None  # time of the first observation with steps
        self._due = 0.0
        self._looks = self._looks_without_steps = 0
        self._listened = self.has_contact = False
        self._needs_contact = framework in frameworks.WITH_ONE_LISTENER

    def due(self, now: float, makes_steps: bool) -> bool:
        """Return whether the connections have to be observed now."""
        is_time = now >= self._due or (makes_steps and self._since is None)
        return bool(self._port and self._hosts) and not self.has_contact and is_time

    def look(self, pids: Callable[[], Collection[int]], now: float, makes_steps: bool) -> None:
        """Observe the connections of a rank that is up, makes steps or joins the others.

        ``pids`` returns the rank's processes, and is only called if needed.
        """
        assert self._port is not None
        self._note_time(now, makes_steps)
        self._listened = self._listened or ports.is_listening(self._port)
        if not self._asked:  # a name server may be slow
            self._asked = True
            threading.Thread(target=self._resolve, daemon=True).start()
        if self._addresses is None:
            return
        if makes_steps:
            self._looks += 1
        else:
            self._looks_without_steps += 1
        self._needs_contact = self._needs_contact or _has_tensorflow(pids())
        was_connected = not self._needs_contact and self._was_connected()
        self.has_contact = was_connected or self._is_connected(pids)

    def _note_time(self, now: float, makes_steps: bool) -> None:
        """Store the time of an observation, and when the next one is due."""
        if makes_steps and self._since is None:
            self._since = self._first = now
        self._first = now if self._first is None else self._first
        # A rank that has waited for others may train only briefly.
        waits = not makes_steps and self._needs_contact
        self._due = now + (EVERY if waits or now - self._first < LATER else LATER_EVERY)

    def _resolve(self) -> None:
        self._addresses = addresses_of(self._hosts)

    def _was_connected(self) -> bool:
        """Return whether a connection to a rank's port was closed recently.

        The kernel no longer knows the connection's process, which may belong to another rank of the
        machine.
        """
        return any(
            one.remote in (self._addresses or ())
            and not self._ports.isdisjoint((one.local_port, one.remote_port))
            for one in connections(*_CLOSING)
        )

    def _is_connected(self, pids: Callable[[], Collection[int]]) -> bool:
        """Return whether a rank's processes have a connection to another rank.

        A connection to the rank's own port counts from any address, because the other host may have
        several.
        """
        everything = connections(_ESTABLISHED)
        wanted = [
            connection
            for connection in everything
            if connection.remote in (self._addresses or ()) or connection.local_port == self._port
        ]
        if not wanted:
            return False
        sockets = {path for pid in pids() for path in processes.opened(pid)}

        def is_own(connection: TcpConnection) -> bool:
            return "socket:[%s]" % connection.inode in sockets

        # Within this machine, both ends are listed.
        ends: Dict[Any, TcpConnection] = {(*c[:2], *c[2:4]): c for c in everything}
        for connection in filter(is_own, wanted):
            reverse = (
                *(connection.remote, connection.remote_port),
                *(connection.local, connection.local_port),
            )
            peer_end = ends.get(reverse)
            if peer_end is None or not is_own(peer_end):
                return True
        return False

    def is_without_any(self) -> bool:
        """Return whether a rank that needs a contact, but makes no known steps, never had one."""
        looked = self._looks_without_steps >= _LOOKS_WITHOUT_STEPS
        return looked and self._needs_contact and self._listened and not self.has_contact

    def seconds_alone(self, now: float) -> float:
        """Return for how long a rank has made steps without a contact; 0 if that is uncertain."""
        if self.has_contact or self._since is None or self._looks < LOOKS:
            return 0.0
        seconds = now - self._since
        is_sure = self._needs_contact or not self._listened or seconds > _RARELY
        return seconds if is_sure else 0.0
