"""Chooses the hosts that run TensorBoard, and the local ports that are forwarded to them."""

from __future__ import annotations

import secrets

from train.gang import reports
from train.gang.connections import Args, Play
from train.gang.errors import UserError
from train.host.ports import is_free
from train.host.tensorboard import ADDRESS

#: Connections that can forward a host's port, and whether the host is another machine.
_CONNECTIONS = {"local": False, "ssh": True, "smart": True, "": True}
_FOUND = reports.fields(
    {"events": reports.items(reports.text(255)), "port": reports.integer(1, 65_535)}
)


def choose(play: Play, args: Args) -> dict[str, object]:
    """Return ``boards``, one for each host with events that no earlier host has.

    Hosts on one machine or with a shared folder have the same events. A board has TensorBoard's
    port ``here`` on this machine and ``there`` on the host, options of ``ssh`` for the forwarding,
    a secret ``path`` and the ``url``. Raise UserError if no reachable host has events.
    """
    shown: set[str] = set()
    boards: dict[str, dict[str, object]] = {}
    warnings = []
    port = int(args["port"])
    for host in play.hosts:
        answer = play.registered(host, args["registered"])
        if "events" not in answer:
            continue  # Ansible has shown the reason
        try:
            found = _FOUND(answer)
        except reports.ReportError as error:
            warnings.append(f"{host} is skipped: malformed report: {error}")
            continue
        new = set(found["events"]) - shown
        plugin = play.connection(host)[0].rpartition(".")[2]
        if new and plugin not in _CONNECTIONS:
            warnings.append(
                f"{host} is skipped: its connection plugin is {plugin}, but only ssh can "
                "forward a port"
            )
        elif new:
            shown |= new
            port = _free_port(port)
            there, ssh = port, ""
            if _CONNECTIONS[plugin]:
                there = found["port"]
                # A separate connection: the one shared with Ansible's other tasks outlives them,
                # and would keep the port.
                forward = f"{ADDRESS}:{port}:{ADDRESS}:{there}"
                ssh = f"-o ControlPath=none -o ExitOnForwardFailure=yes -L {forward}"
            path = secrets.token_urlsafe(16)
            url = f"http://{ADDRESS}:{port}/{path}/"
            boards[host] = {"here": port, "there": there, "ssh": ssh, "path": path, "url": url}
            port += 1
    if not boards:
        which = ", ".join(args["jobs"]) or "any job"
        nothing = f"no host has TensorBoard events of {which} yet"
        raise UserError("\n".join([nothing, *warnings]))
    return {"boards": boards, "warnings": warnings}


def _free_port(first: int) -> int:
    """Return the first free port on this machine from ``first`` on. Raise UserError without one."""
    ports = range(first, 65_536) if first > 0 else ()
    for port in filter(is_free, ports):
        return port
    raise UserError(
        f"no free port on this machine from {first} to 65535: choose a lower first port, 1 or more"
    )
