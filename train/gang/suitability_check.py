"""Collects facts from hosts and judges whether TensorFlow can be installed there.

A host needs only a shell: the program is sent through standard input and runs under any Python
3.6 or newer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible import constants

from train.gang import (
    PACKAGE,
    ansible_core,
    connections,
    host_programs,
    login_failures,
    reports,
    suitability_rules,
)
from train.gang.connections import Args, Returned
from train.gang.errors import UnreachableError
from train.gang.login_failures import LoginFailure
from train.gang.suitability_rules import HostFault, Needs
from train.host.host_facts import Suitability

_INTERPRETER = "ansible_python_interpreter"
_PROGRAM = PACKAGE / "host/suitability.py"
#: Command for a host without Python: prints the names in os-release(5).
_NO_PYTHON = (
    ". /etc/os-release 2>/dev/null; "
    """printf '{"os_id": "%s", "os_version": "%s", "os_name": "%s"}' """
    '"$ID" "$VERSION_ID" "$NAME $VERSION_ID"'
)
_OS = reports.fields({name: reports.text(100) for name in ("os_id", "os_version", "os_name")})
_FACTS = reports.record(Suitability)


def needs(play: connections.Play, host: str, roles: Collection[str] | None = None) -> Needs:
    """Return the needs of TensorFlow on a host, from its variables.

    Args:
        roles: roles that setup.yml will run on the host. Defaults to those in the inventory.
    """
    values = play.values(host, "setup_roles", *suitability_rules.VARIABLES)
    if roles is None:
        roles = values.get("setup_roles", suitability_rules.ROLES)
    return suitability_rules.needs(values, roles, ansible_core.modules_python())


def ask(action: Any, task_vars: Args) -> Returned:
    """Return the ``facts`` of the action's host, or only its ``os`` if it has no Python."""
    play, host = connections.Play(action, task_vars), str(task_vars["inventory_hostname"])
    request = needs(play, host).request
    call = f"\nprint(json.dumps(examine(json.loads({json.dumps(request)!r}))))\n"
    program = _PROGRAM.read_text(encoding="utf-8") + call
    given = str(play.values(host, _INTERPRETER).get(_INTERPRETER) or "")
    named = [given] if given.startswith(("/", "python")) else []
    # In Ansible's order. The last one may be the only one installed.
    names = [*named, *constants.INTERPRETER_PYTHON_FALLBACK, request["python"]]
    pythons = " ".join(map(_word, names))
    command = (
        # Some are shims for interpreters that are not installed.
        f'for python in {pythons}; do "$python" -c pass </dev/null >/dev/null 2>&1 '
        f'&& exec "$python" -I -; done; {_NO_PYTHON}'
    )
    try:
        answer = host_programs.run(action, command, program.encode())
    except UnreachableError as error:
        return {"unreachable": True, "msg": str(error)}
    except OSError as error:
        return {
            "failed": True,
            "msg": f"this host cannot be examined: {reports.bounded(str(error))}",
        }
    try:
        return {"os": _OS(answer)} if "machine" not in answer else {"facts": _FACTS(answer)}
    except reports.ReportError as error:
        return {"failed": True, "msg": f"the host's report is malformed: {error}"}


def _word(path: str) -> str:
    """Quote a path for the host's shell, which expands the home directory."""
    home, rest = ('"$HOME"/', path[2:]) if path.startswith("~/") else ("", path)
    return f"{home}{shlex.quote(rest)}"


def judge(play: connections.Play, args: Args) -> Returned:
    """Judge whether setup.yml can set up the examined hosts for TensorFlow.

    Args:
        play: the play in which ``ask`` was registered.
        args: ``members`` as in playbooks/machines.yml; ``registered``, the variable with the
            results of ``ask``; ``run_tags`` and ``skip_tags``.

    Returns:
        ``unsuited``, the hosts that cannot be set up, with one line for each of their faults;
        ``lines``, a text for each fault with its hosts; ``left_out``, texts about unreachable
        hosts, and ``lines``.
    """
    faults: dict[str, list[HostFault]] = {}
    unreachable: dict[str, LoginFailure] = {}
    for member in args["members"]:
        host = str(member["name"])
        answer = play.registered(host, args["registered"])
        if answer.get("unreachable"):
            unreachable[host] = login_failures.of_result(reports.bounded(answer))
        roles = chosen(member["roles"], args["run_tags"], args["skip_tags"])
        if suitability_rules.INSTALLS in roles:
            found = _judged(answer, needs(play, host, roles))
            if found:
                faults[host] = found
    lines = suitability_rules.lines(faults)
    for line in lines:
        connections.say(line)
    return {
        "unsuited": {host: [fault.found for fault in found] for host, found in faults.items()},
        "lines": lines,
        "left_out": [*login_failures.merged(unreachable), *lines],
    }


def _judged(answer: Mapping[str, Any], needed: Needs) -> list[HostFault]:
    if "os" in answer:
        names = _OS(answer["os"])
        return suitability_rules.without_python(**names, needed=needed)
    return suitability_rules.judge(_FACTS(answer["facts"]), needed) if "facts" in answer else []


def chosen(roles: Sequence[str], run_tags: Sequence[str], skip_tags: Sequence[str]) -> list[str]:
    """Return the roles that ``--tags`` and ``--skip-tags`` select. Each role is a tag."""
    everything = {"all", "tagged"}
    return [
        role
        for role in roles
        if {role, *everything} & set(run_tags) and not {role, *everything} & set(skip_tags)
    ]
