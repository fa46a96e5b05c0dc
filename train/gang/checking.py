"""Checks the hosts of a gang before an attempt."""

from __future__ import annotations

from train.gang import connections, login_failures, machine_calls
from train.gang.connections import Args, Returned

#: The purpose of the connections.
_CHECK = "check"
#: Parts of a host's result.
_KNOWN = ("host", "lacks_framework", "ranks")
#: The result of a host that does not run the tasks of the role.
_GONE: Returned = {"failed": True, "msg": "an earlier task of this play failed on this host"}
#: Options of ``gang_check`` that are the same for all hosts.
_SHARED = ("job", "attempt", "framework", "modules", "wait", "avoids_preempted")


def check_hosts(play: connections.Play, args: Args) -> Returned:
    """Check all hosts of the play. Return the result of each as ``hosts``, and ``warnings``.

    A host that cannot be reached has ``unreachable``, one on which a rank cannot start has
    ``failed``. Both have a ``msg``. Raise UserError if a template in a host's variables is invalid.
    """
    request = {**{name: args[name] for name in _SHARED}, "call": "host_checks"}
    # In later attempts, hosts count as failed for Ansible although the role continues with them.
    gone = [host for host in play.hosts if host not in play.active and int(args["attempt"]) == 1]
    hosts = [host for host in play.hosts if host not in gone]
    machines = machine_calls.machines(play, hosts, args["beside"], str(args["options"]))
    found = machine_calls.ask(play, machines, request, _KNOWN, _CHECK)
    found |= dict.fromkeys(gone, _GONE)
    lost = {host: login_failures.of_result(r) for host, r in found.items() if r.get("unreachable")}
    for line in login_failures.merged(lost):
        connections.say(line)
    ordered = {host: found[host] for host in play.hosts}
    return {"hosts": ordered, "warnings": machine_calls.warnings(ordered)}
