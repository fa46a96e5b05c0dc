"""Which hosts show TensorBoard, and the ports of this machine that lead to them."""

from __future__ import annotations

import secrets

from train.gang import reports
from train.gang.connections import Args, Play
from train.gang.plan.ranks import PlanError
from train.host import processes
from train.host.tensorboard import ADDRESS

#: Connections through which a port of a host is reached, by whether the host is another machine.
_CONNECTIONS = {"local": False, "ssh": True, "smart": True, "": True}
_FOUND = reports.fields(
    {"events": reports.items(reports.text(255)), "port": reports.integer(1, 65_535)}
)


def choose(play: Play, args: Args) -> dict[str, object]:
    """Return ``boards``, one for each host that has events which none before it has: those of one
    machine, or with a shared folder, show the same. A board has TensorBoard's port ``here``, on
    this machine, and ``there``, on the host, the options of ``ssh`` that lead to the host's, its
    ``path``, which no other user can guess, and its ``url``.
    PlanError: no host that can be reached has any.
    """
    shown: set[str] = set()
    boards: dict[str, dict[str, object]] = {}
    warnings = []
    port = int(args["port"])
    for host in play.hosts:
        answer = play.registered(host, "__train_job_events")
        if "events" not in answer:
            continue  # Ansible has said why
        try:
            found = _FOUND(answer)
        except reports.ReportError as error:
            warnings.append(f"{host} is left out: in what it reports, {error}")
            continue
        new = set(found["events"]) - shown
        plugin = play.connection(host)[0].rpartition(".")[2]
        if new and plugin not in _CONNECTIONS:
            warnings.append(
                f"{host} is left out: its connection is {plugin}, and only ssh leads to a port"
            )
        elif new:
            shown |= new
            port = _free_port(port)
            there, ssh = port, ""
            if _CONNECTIONS[plugin]:
                there = found["port"]
                # A connection of its own: that of Ansible's other tasks outlives them, and would
                # keep the port.
                forward = f"{ADDRESS}:{port}:{ADDRESS}:{there}"
                ssh = f"-o ControlPath=none -o ExitOnForwardFailure=yes -L {forward}"
            path = secrets.token_urlsafe(16)
            url = f"http://{ADDRESS}:{port}/{path}/"
            boards[host] = {"here": port, "there": there, "ssh": ssh, "path": path, "url": url}
            port += 1
    if not boards:
        which = ", ".join(args["jobs"]) or "any job"
        nothing = f"no host has events for TensorBoard of {which} yet"
        raise PlanError("\n".join([nothing, *warnings]))
    return {"boards": boards, "warnings": warnings}


def _free_port(first: int) -> int:
    """Return the first port from ``first`` on that is free here; PlanError without one."""
    ports = range(first, 65_536) if first > 0 else ()
    for port in filter(processes.is_free, ports):
        return port
    raise PlanError(f"no port of this machine is free from {first} on: the limit is 1 to 65535")
