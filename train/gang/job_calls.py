"""Asks the hosts of a play for their jobs and ranks, and stops ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from train.gang import (
    answers,
    connections,
    lines,
    login_failures,
    machine_calls,
    reports,
    suggestions,
)
from train.gang.connections import Args, Returned
from train.gang.listing import LISTED_BY
from train.gang.login_failures import names_of
from train.gang.machine_calls import Machine
from train.host.records import ABSENT, FINAL_PHASES

#: The purpose of the connections.
_PURPOSE = "jobs"
#: Seconds before hosts are tried again.
_PAUSE_S = 2.0
#: Parts of a host's result.
_STATES = ("rank", "state", "progress", "last_line", "more", "manifest")
_STOPPED = ("changed", "stop_report", "more")
_LISTED = ("jobs", "leases")


def states(play: connections.Play, args: Args) -> Returned:
    """Return the states of each host's ranks as ``hosts``, and ``lines`` about the ranks."""
    request = {"call": "rank_states", "job": args["job"], "manifest": args["manifest"]}
    machines, found = _machines(play, play.hosts, args)
    found |= machine_calls.ask(play, machines, request, _STATES, _PURPOSE)
    return {"hosts": found, "lines": list(_lines(found, reports.all_seen, _state_line))}


def jobs(play: connections.Play, args: Args) -> Returned:
    """Return each host's jobs and leases as ``hosts``.

    If several inventory hosts of a machine have the same folders, only the first has the jobs, and
    the others have its name as LISTED_BY.
    """
    names = ("job", "lines", "sizes")
    request = {name: args[name] for name in names if args[name] is not None}
    machines, found = _machines(play, play.hosts, args)
    alike = {host: first for machine in machines for host, first in machine.drop_alike().items()}
    found |= machine_calls.ask(play, machines, {**request, "call": "job_lists"}, _LISTED, _PURPOSE)
    for host, first in alike.items():
        found[host] = {LISTED_BY: first} if "jobs" in found[first] else found[first]
    return {"hosts": found}


def stop(play: connections.Play, args: Args) -> Returned:
    """Stop a job's ranks on hosts. Return the result of each as ``hosts``, and ``lines``.

    A host that cannot be reached is tried again ``retries`` times, unless it rejects the login.
    With ``warn``, the ``warnings`` name the hosts whose ranks may still be running.
    """
    names = ("job", "reason", "permanent", "attempt")
    request = {name: args[name] for name in names if args[name] is not None}
    wanted = play.hosts if args["hosts"] is None else args["hosts"]
    machines, found = _machines(play, wanted, args)
    request["call"] = "rank_stops"
    found |= machine_calls.ask(play, machines, request, _STOPPED, _PURPOSE)
    for number in range(int(args["retries"])):
        machines = [one.again() for one in machines if _may_recover(found[one.first])]
        if not machines:
            break
        time.sleep(_PAUSE_S)
        # The connection of the earlier call may still be in use.
        purpose = f"{_PURPOSE}-{number}"
        found |= machine_calls.ask(play, machines, request, _STOPPED, purpose)
    return {
        "changed": any(result.get("changed") for result in found.values()),
        "hosts": found,
        "lines": list(_lines(found, reports.stop_reports, lines.stopped)),
        "warnings": _left(found, str(args["job"])) if args["warn"] else [],
    }


def require_answers(play: connections.Play, args: Args) -> Returned:
    """Return a failed result if a host did not answer, with the results of such hosts."""
    found = play.of_gang(args["registered"]).get("hosts") or {}
    failed = answers.failed(found)
    return {"failed": True, "hosts": failed, "msg": answers.reasons(failed)} if failed else {}


def _machines(
    play: connections.Play, hosts: list[str], args: Args
) -> tuple[list[Machine], dict[str, Returned]]:
    """Return the machines of hosts, and the results of hosts whose variables are invalid."""
    invalid: dict[str, Returned] = {}
    machines = machine_calls.machines(play, hosts, play.neighbors(), str(args["options"]), invalid)
    return machines, invalid


def _lines(
    found: Mapping[str, Returned],
    check: Callable[[Any], list[Any]],
    line_of: Callable[[Any], str],
) -> Iterator[str]:
    """Yield a line about each report of each host. ``check`` returns a host's reports."""
    for host, result in found.items():
        try:
            checked = check(result)
        except reports.ReportError as error:
            if not answers.failed({host: result}):
                yield f"{host}: ignoring a malformed report: {error}"
            continue
        yield from (f"{host}: {line_of(report)}" for report in checked)


def _state_line(seen: Mapping[str, Any]) -> str:
    rank, state = seen["rank"], seen["state"]
    name = f"{rank['job']} {rank['task']}" if rank else ABSENT
    shown = lines.line(state["phase"], state.get("reason"), seen["progress"], seen["last_line"])
    if state["phase"] not in FINAL_PHASES and state.get("reason"):
        shown = f"{shown}  {state['reason']}"
    return f"{name}: {shown}" if rank else shown


def _may_recover(result: Returned) -> bool:
    """Return whether a host that could not be reached may answer if it is tried again."""
    if not result.get("unreachable"):
        return False
    return login_failures.of_result(result).kind not in login_failures.REJECTED


def _left(found: Mapping[str, Returned], job: str) -> list[str]:
    """Return a warning about hosts whose ranks were not stopped, if there are any."""
    failed = answers.failed(found)
    if not failed:
        return []
    remedy = f"`{suggestions.command('stop', job=job)}` stops them"
    return [
        f"ranks on {names_of([*failed])} may still be running; {remedy}: {answers.reasons(failed)}"
    ]
