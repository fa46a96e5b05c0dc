"""Checks which ranks a host can reach, and what prevents connections. Prints JSON.

    python3 -S -E launcher/programs.zip train.host.probe RANK_DIR PEERS TIMEOUT

PEERS is a JSON object of ``[address, port]`` by task. TIMEOUT is the time limit in seconds for all
connections together.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import selectors
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from . import ports, processes, rank_environment, ranks, records

OPEN = "open"
REFUSED = "refused"
TIMEOUT = "timeout"
UNRESOLVABLE = "unresolvable"
UNREACHABLE = "unreachable"
#: gRPC uses the first one that is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
_SIOCGIFADDR = 0x8915


def connect(address: str, port: int, timeout: float) -> Tuple[str, Optional[socket.socket]]:
    """Open a TCP connection; return the result, and the connection if it is open."""
    try:
        family, kind, _, _, place = _resolve(address, port)
    except OSError:
        return UNRESOLVABLE, None
    connection = socket.socket(family, kind)
    connection.settimeout(timeout)
    code = connection.connect_ex(place)
    if code:
        connection.close()
        return _result(code), None
    return OPEN, connection


def reach(peers: Dict[str, Tuple[str, int]], timeout: float) -> Dict[str, str]:
    """Return for each peer the result of a TCP connection within ``timeout`` seconds."""
    found: Dict[str, str] = {}
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for name, (address, port) in peers.items():
            try:
                family, kind, _, _, place = _resolve(address, port)
            except OSError:
                found[name] = UNRESOLVABLE
                continue
            connection = stack.enter_context(socket.socket(family, kind))
            connection.setblocking(False)
            code = connection.connect_ex(place)
            if code in (0, errno.EINPROGRESS):
                found[name] = TIMEOUT
                selector.register(connection, selectors.EVENT_WRITE, name)
            else:
                found[name] = _result(code)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(deadline - time.monotonic()):
                sock: Any = key.fileobj
                found[key.data] = _result(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(sock)
    return found


def _resolve(address: str, port: int) -> Any:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]


def _result(code: int) -> str:
    # EAGAIN: the socket's own time limit, not the kernel's.
    timeouts = dict.fromkeys((errno.EAGAIN, errno.ETIMEDOUT), TIMEOUT)
    return {0: OPEN, errno.ECONNREFUSED: REFUSED, **timeouts}.get(code, UNREACHABLE)


def is_own(address: str) -> bool:
    """Return whether an address belongs to this host."""
    try:
        family, kind, _, _, place = _resolve(address, 0)
        with socket.socket(family, kind) as server:
            server.bind(place)
    except OSError:
        return False
    return True


def own_addresses() -> List[str]:
    """Return this host's IPv4 addresses except loopback."""
    routes = processes.read_text("/proc/net/fib_trie")
    found = re.findall(r"(\S+)\n.*host LOCAL", routes)
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, or an empty string; see netdevice(7)."""
    request = struct.pack("256s", interface.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as asked:
        return socket.inet_ntoa(fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)[20:24])
    return ""


def proxy(pid: Any) -> str:
    """Return the variable that makes gRPC in a process use a proxy, or an empty string."""
    environment = processes.environment(pid)
    if "grpc.enable_http_proxy=0" in environment.get(rank_environment.ENV_GRPC, ""):
        return ""
    # If these are set, they are assumed to include the ranks' hosts.
    if any(environment.get(name) for name in _EXCEPTIONS):
        return ""
    return next((name for name in _PROXIES if environment.get(name)), "")


def check(rank_dir: str, peers: Dict[str, Tuple[str, int]], timeout: float) -> records.Probed:
    """Return which peers the rank's host reaches, and facts that explain failures."""
    state = ranks.observe(rank_dir)
    task, port = state.get("task"), state.get("port")
    address = peers[task][0] if task in peers else ""
    sends_to = proxy(state.get("pid"))
    listened = _listens(port)
    reached = reach(peers, timeout)
    return {
        # Checked repeatedly: a rank that ended meanwhile refuses connections, but was reachable.
        "listening": listened and _listens(port),
        "own": is_own(address),
        "addresses": own_addresses(),
        "proxy": sends_to,
        "reached": reached,
    }


def _listens(port: Optional[int]) -> bool:
    return port is not None and ports.is_listening(port)


if __name__ == "__main__":
    rank_dir, peers, timeout = sys.argv[1:]
    print(json.dumps(check(os.path.abspath(rank_dir), json.loads(peers), float(timeout))))
