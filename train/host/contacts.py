"""Checks from TCP connections whether a rank is in contact with the others of its gang.

A rank whose script does not join the others trains alone and appears to succeed. Its host detects
that: the rank makes steps, but never has a connection to another rank. A connection to any port of
another rank counts, because scripts may exchange data in their own ways. So does any connection to
the rank's own port. A rank that opens its port may exchange data rarely, so it is observed for
longer, unless its framework keeps the connections: JAX and PyTorch do, and TensorFlow once it is
loaded. With these, a rank whose steps are unknown is alone if it opened its port and ended without
any connection. If its steps are known and its port was never open, one observation is enough.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Callable, Collection, Dict, Mapping, Optional, Sequence, Set

from . import frameworks, ports, processes, sockets

#: Observations of a rank that makes steps before it is judged; the least and the most seconds
#: between two of them; and the share of the time since the first one that passes before the next,
#: because an observation takes some milliseconds, and a machine may have many ranks.
OBSERVATIONS, EVERY, LATER_EVERY, _SHARE = 4, 0.5, 5.0, 1 / 4
#: Seconds before the next observation while names are resolved.
_RESOLVING = 0.1
#: Observations before a rank without known steps is judged.
_OBSERVATIONS_WITHOUT_STEPS = 20
#: Seconds of steps before a rank is judged that has opened its port but needs no lasting contact.
_RARELY = 10.0


def addresses_of(hosts: Collection[str]) -> Set[bytes]:
    """Return the packed addresses of ``hosts``; hosts that cannot be resolved are skipped."""
    found = set()
    for host in hosts:
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, place in socket.getaddrinfo(host, None):
                if family in (socket.AF_INET, socket.AF_INET6):
                    address = socket.inet_pton(family, str(place[0]).partition("%")[0])
                    found.add(sockets.unmapped(address))
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
        self._foreign: Set[str] = set()  # inodes of sockets of other processes
        self._asked = False
        self._first: Optional[float] = None  # time of the first observation
        self._since: Optional[float] = None  # time of the first observation with steps
        self._due = 0.0
        self._observations = self._observations_without_steps = 0
        self._listened = self.has_contact = False
        self._needs_contact = framework in frameworks.WITH_ONE_LISTENER

    def due(self, now: float, makes_steps: bool) -> bool:
        """Return whether the connections have to be observed now."""
        is_time = now >= self._due or (makes_steps and self._since is None)
        return bool(self._port and self._hosts) and not self.has_contact and is_time

    def observe(
        self,
        known: Collection[int],
        pids: Callable[[], Collection[int]],
        now: float,
        makes_steps: bool,
    ) -> None:
        """Observe the connections of a rank that is up, makes steps or joins the others.

        Args:
            known: the rank's processes as they were last listed.
            pids: lists the rank's processes, which takes a while; only called if needed.
            now: seconds of a monotonic clock.
            makes_steps: whether the rank makes steps.
        """
        assert self._port is not None
        self._note_time(now, makes_steps)
        self._listened = self._listened or ports.is_listening(self._port)
        if not self._asked:  # a name server may be slow
            self._asked = True
            threading.Thread(target=self._resolve, daemon=True).start()
        if self._addresses is None:
            self._due = now + _RESOLVING
            return
        if makes_steps:
            self._observations += 1
        else:
            self._observations_without_steps += 1
        self._needs_contact = self._needs_contact or _has_tensorflow(known)
        closing = () if self._needs_contact else sockets.CLOSING
        listed = sockets.listed(sockets.ESTABLISHED, *closing)
        opened = [one for one in listed if one.state == sockets.ESTABLISHED]
        closed = [one for one in listed if one.state != sockets.ESTABLISHED]
        self.has_contact = self._was_connected(closed) or self._is_connected(opened, pids)

    def _note_time(self, now: float, makes_steps: bool) -> None:
        """Store the time of an observation, and when the next one is due."""
        if makes_steps and self._since is None:
            self._since = self._first = now
        self._first = now if self._first is None else self._first
        # A rank that has waited for others may train only briefly.
        waits = not makes_steps and self._needs_contact
        share = 0.0 if waits else (now - self._first) * _SHARE
        self._due = now + min(max(share, EVERY), LATER_EVERY)

    def _resolve(self) -> None:
        self._addresses = addresses_of(self._hosts)

    def _was_connected(self, closed: Sequence[sockets.TcpSocket]) -> bool:
        """Return whether one of the recently closed connections was to a rank's port.

        The kernel no longer knows the connection's process, which may belong to another rank of the
        machine.
        """
        return any(
            one.remote in (self._addresses or ())
            and not self._ports.isdisjoint((one.local_port, one.remote_port))
            for one in closed
        )

    def _is_connected(
        self, opened: Sequence[sockets.TcpSocket], pids: Callable[[], Collection[int]]
    ) -> bool:
        """Return whether a rank's processes have a connection to another rank.

        A connection to the rank's own port counts from any address, because the other host may have
        several.
        """
        wanted = [
            connection
            for connection in opened
            if connection.remote in (self._addresses or ()) or connection.local_port == self._port
        ]
        # Others keep their connections, such as the login of the control node.
        wanted = [one for one in wanted if one.inode not in self._foreign]
        if not wanted:
            return False
        held = {path for pid in pids() for path in processes.opened(pid)}

        def is_own(connection: sockets.TcpSocket) -> bool:
            return "socket:[%s]" % connection.inode in held

        self._foreign.update(one.inode for one in wanted if not is_own(one))
        # Within this machine, both ends are listed.
        ends: Dict[Any, sockets.TcpSocket] = {one[1:5]: one for one in opened}
        for connection in filter(is_own, wanted):
            reverse = (
                *(connection.remote, connection.remote_port),
                *(connection.local, connection.local_port),
            )
            peer_end = ends.get(reverse)
            if peer_end is None or not is_own(peer_end):
                return True
        return False

    def ended_without_any(self) -> bool:
        """Return whether a rank that has ended needed a contact, but never had one.

        It may have ended before ``seconds_alone`` was certain.
        """
        is_sure = self._observations_without_steps >= _OBSERVATIONS_WITHOUT_STEPS
        joined_none = self._observations > 0 and not self._listened
        opened_only = is_sure and self._listened
        needed = self._needs_contact and not self.has_contact
        return needed and (joined_none or opened_only)

    def seconds_alone(self, now: float) -> float:
        """Return for how long a rank has made steps without a contact; 0 if that is uncertain."""
        if self.has_contact or self._since is None or self._observations < OBSERVATIONS:
            return 0.0
        seconds = now - self._since
        is_sure = self._needs_contact or not self._listened or seconds > _RARELY
        return seconds if is_sure else 0.0
