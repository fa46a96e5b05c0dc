"""Whether a rank is in contact with the others of its gang, by its TCP connections.

A rank whose script has not used TF_CONFIG trains by itself, to an end that looks like success. The
hosts can see that: it makes steps, and no connection between it and another rank is ever seen. One
to any port counts, as scripts may exchange data in their own ways; so does any to its own port. A
rank that opens its port may exchange data rarely, and is looked at for longer, unless TensorFlow
is in it: its strategies keep their connections. With TensorFlow, a rank whose steps are not known
is alone if it has opened its port and ended without any connection.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Set

from . import processes

_ESTABLISHED = "01"
#: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK and CLOSING: it was open until just now.
_CLOSING = ("04", "05", "06", "08", "09", "0B")
#: The prefix of an IPv4 address in an IPv6 one.
_MAPPED = bytes(10) + b"\xff\xff"
#: Looks at a rank that makes steps on which a judgement rests, and the seconds between two of them:
#: at first, and once that has lasted for longer.
LOOKS, EVERY, LATER_EVERY, LATER = 4, 0.5, 5.0, 60.0
#: Looks on which it rests without known steps.
_LOOKS_WITHOUT_STEPS = 20
#: Seconds for which a rank makes steps that has opened its port and is without TensorFlow.
_RARELY = 10.0


class Connection(NamedTuple):
    """A line of /proc/net/tcp; addresses are packed."""

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    inode: str


def _packed(text: str) -> bytes:
    """Return an address as the kernel prints it: words of the machine's byte order."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return data[12:] if data.startswith(_MAPPED) else data


def connections(*states: str) -> List[Connection]:
    """Return the TCP connections of this host in some of the kernel's states."""
    found = []
    for table in ("net/tcp", "net/tcp6"):
        for line in processes.read_text(processes.PROC, table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] in states:
                local, _, local_port = fields[1].partition(":")
                remote, _, remote_port = fields[2].partition(":")
                ends = (_packed(local), int(local_port, 16), _packed(remote), int(remote_port, 16))
                found.append(Connection(*ends, fields[9]))
    return found


def addresses_of(hosts: Collection[str]) -> Set[bytes]:
    """Return the addresses of ``hosts``, packed; none of one that cannot be resolved."""
    found = set()
    for host in hosts:
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, place in socket.getaddrinfo(host, None):
                if family in (socket.AF_INET, socket.AF_INET6):
                    address = socket.inet_pton(family, str(place[0]).partition("%")[0])
                    found.add(address[12:] if address.startswith(_MAPPED) else address)
    return found


def peers_of(tf_config: Mapping[str, Any]) -> Set[str]:
    """Return the hosts of the other ranks of a gang, by the rank's TF_CONFIG."""
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
    """The contacts of a rank of several, from its start to the first one that is seen."""

    def __init__(self, port: Optional[int], tf_config: Mapping[str, Any]) -> None:
        self._port, self._hosts = port, peers_of(tf_config)
        self._ports = _ports_of(tf_config)
        self._addresses: Optional[Set[bytes]] = None
        self._asked = False
        self._first: Optional[float] = None  # when it was looked at first
        self._since: Optional[float] = None  # when it was first seen to make steps
        self._due = 0.0
        self._looks = self._looks_without_steps = 0
        self._listened = self._has_contact = self._needs_contact = False

    def due(self, now: float, makes_steps: bool) -> bool:
        """Return whether the connections are to be looked at now."""
        is_time = now >= self._due or (makes_steps and self._since is None)
        return bool(self._port and self._hosts) and not self._has_contact and is_time

    def look(self, pids: Callable[[], Collection[int]], now: float, makes_steps: bool) -> None:
        """Look at the connections of the processes of a rank that is up or makes steps; ``pids``
        finds them, and is only called if it matters.
        """
        assert self._port is not None
        self._note_time(now, makes_steps)
        self._listened = self._listened or processes.is_listening(self._port)
        if not self._asked:  # a name server may take its time
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
        self._has_contact = was_connected or self._is_connected(pids)

    def _note_time(self, now: float, makes_steps: bool) -> None:
        """Note when a rank is looked at, and when that is due again."""
        if makes_steps and self._since is None:
            self._since = self._first = now
        self._first = now if self._first is None else self._first
        # The training of a rank that has waited for others may be short.
        waits = not makes_steps and self._needs_contact
        self._due = now + (EVERY if waits or now - self._first < LATER else LATER_EVERY)

    def _resolve(self) -> None:
        self._addresses = addresses_of(self._hosts)

    def _was_connected(self) -> bool:
        """Return whether a connection to a rank's port has been closed just now. The kernel does
        not name its process any more: on a machine of several ranks it may be another one's.
        """
        return any(
            one.remote in (self._addresses or ())
            and not self._ports.isdisjoint((one.local_port, one.remote_port))
            for one in connections(*_CLOSING)
        )

    def _is_connected(self, pids: Callable[[], Collection[int]]) -> bool:
        """Return whether a rank's processes have a connection to another rank. One to its own port
        is taken for that from any address: a host may have several.
        """
        everything = connections(_ESTABLISHED)
        wanted = [
            one
            for one in everything
            if one.remote in (self._addresses or ()) or one.local_port == self._port
        ]
        if not wanted:
            return False
        own = {path for pid in pids() for path in processes.opened(pid)}

        def is_own(connection: Connection) -> bool:
            return "socket:[%s]" % connection.inode in own

        # Within this machine, both ends are listed.
        ends: Dict[Any, Connection] = {(*c[:2], *c[2:4]): c for c in everything}
        for one in filter(is_own, wanted):
            other = ends.get((one.remote, one.remote_port, one.local, one.local_port))
            if other is None or not is_own(other):
                return True
        return False

    def is_without_any(self) -> bool:
        """Return whether a rank of TensorFlow, of which no step is known, never had a contact."""
        looked = self._looks_without_steps >= _LOOKS_WITHOUT_STEPS
        return looked and self._needs_contact and self._listened and not self._has_contact

    def seconds_alone(self, now: float) -> float:
        """Return for how long a rank has made steps without a contact; 0 where that is not sure."""
        if self._has_contact or self._since is None or self._looks < LOOKS:
            return 0.0
        seconds = now - self._since
        is_sure = self._needs_contact or not self._listened or seconds > _RARELY
        return seconds if is_sure else 0.0
