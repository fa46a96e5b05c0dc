"""Collects facts from the hosts, and makes them measure the paths between each other."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleError

from train.gang import (
    connections,
    login_check,
    login_failures,
    reports,
    suggestions,
    suitability_check,
    suitability_rules,
)
from train.gang.doctor import PARTS, findings
from train.gang.doctor.doctor_records import Examined, Login
from train.gang.errors import UserError
from train.host import frameworks
from train.host.checkup import Checkup
from train.host.links import Link
from train.host.threads import ask_all

#: Seconds of each transfer between two hosts, in the normal and the quick form.
_TRANSFER_S, _QUICK_S = 0.25, 0.1
#: Maximum seconds for a login, and for all paths of a host: a fixed part, plus one per round.
_LOGIN_S = 15.0
_MEASURE_S, _ROUND_S = 60.0, 8.0

_GPUS = reports.items(reports.mapping(reports.text(100), reports.text(200)), reports.MAX_GPUS)
_FRAMEWORK = reports.one_of(*frameworks.FRAMEWORKS)
_CHECKUP = reports.fields({"checkup": reports.record(Checkup, gpus=_GPUS, framework=_FRAMEWORK)})
_PEERS = reports.mapping(reports.text(255), reports.record(Link), reports.MAX_RANKS)
_LINKS = reports.fields({"listen_error": reports.text(), "links": _PEERS})


def rounds(names: Sequence[str]) -> dict[str, list[str | None]]:
    """Return each host's peer in each round, by the circle method of round-robin tournaments.

    The pairs of a round are disjoint. After N-1 rounds (N if N is odd) all hosts have met.
    """
    circle: list[str | None] = [*names] if len(names) % 2 == 0 else [*names, None]
    peers: dict[str, list[str | None]] = {name: [] for name in names}
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        for one, other in zip(circle[:half], reversed(circle[half:]), strict=True):
            if one is not None:
                peers[one].append(other)
            if other is not None:
                peers[other].append(one)
        circle.insert(1, circle.pop())
    return peers


def addresses(play: connections.Play, args: connections.Args) -> dict[str, object]:
    """Return the ``addresses`` that hosts use to reach each other."""
    name = "train_job_address"
    return {"addresses": {host: str(play.values(host, name)[name]) for host in play.hosts}}


def doctor(play: connections.Play, args: connections.Args) -> dict[str, object]:
    """Judge the hosts of the play from their results of ``host_examine``. Return ``examined``.

    First log in to each host once more and, if requested, measure the paths between the hosts.
    """
    parts = [part for part in PARTS if part in args["parts"]]
    checkups: dict[str, Checkup] = {}
    unreachable: dict[str, str] = {}
    failed: dict[str, str] = {}
    remedies: dict[str, str] = {}
    for host in play.hosts:
        answer = play.registered(host, args["registered"])
        if answer.get("unreachable"):
            login = login_failures.of_result(reports.bounded(answer))
            unreachable[host], remedies[host] = login.sentence, login.remedy
            continue
        try:
            checkups[host] = _CHECKUP(answer)["checkup"]
        except reports.ReportError as error:
            failed[host] = reports.bounded(str(answer.get("msg") or error))
    examined = Examined(
        at=time.time(),
        parts=parts,
        checkups=checkups,
        logins=_log_in(play, list(checkups)),
        links={},
        unreachable=unreachable,
        remedies=remedies,
        failed=failed,
        addresses={host: str(args["addresses"][host]) for host in checkups},
        trains=[host for kind in ("chief", "worker") for host in args["groups"][kind]],
        findings=[],
        scaling=None,
    )
    warnings = []
    if "pairs" in parts and len(checkups) > 1:
        warnings = _measure(play, examined, bool(args["quick"]))
    unsuited = {
        host: suitability_rules.judge(checkup["suitability"], suitability_check.needs(play, host))
        for host, checkup in checkups.items()
    }
    reach = {host: _reached(play, host) for host in [*checkups, *examined["failed"]]}
    for one in findings.judge(examined, unsuited):
        examined["findings"].append({**one, "remedy": suggestions.filled(one["remedy"], reach)})
    said = [f"{one['severity']}: {one['where']}: {one['found']}" for one in examined["findings"]]
    return {"examined": examined, "lines": said, "warnings": warnings}


def _reached(play: connections.Play, host: str) -> connections.Args:
    """Return a host's connection variables, for suggested commands."""
    try:
        return login_check.variables_of(play.connect(host, "doctor"))
    except (AnsibleError, UserError):
        return {"ansible_host": host}


def _log_in(play: connections.Play, hosts: Sequence[str]) -> dict[str, Login]:
    """Log in once to each host and read its clock. Hosts whose login fails are left out."""

    def one(host: str) -> Login:
        began, at = time.monotonic(), time.time()
        text, seen = play.login(host, "doctor", "date +%s.%N")
        seconds = time.monotonic() - began
        clock = reports.real(float(seen)) - at - seconds / 2
        return Login(seconds=round(seconds, 3), clock=round(clock, 3), text=text)

    return ask_all(hosts, one, _LOGIN_S)[0]


def _measure(play: connections.Play, examined: Examined, quick: bool) -> list[str]:
    """Make the hosts measure the paths between each other on free ports. Return warnings."""
    checkups, token = examined["checkups"], secrets.token_hex(16)
    # Inventory hosts of one machine may share a port, because an evaluator never listens.
    listeners = {(c["machine"], c["spare_port"]): host for host, c in reversed(checkups.items())}
    hosts = [host for host in checkups if host in listeners.values()]
    places = {host: (examined["addresses"][host], checkups[host]["spare_port"]) for host in hosts}
    schedule = rounds(hosts)

    def one(host: str) -> dict[str, Any]:
        request = {
            "call": "measure_links",
            "name": host,
            "token": token,
            "port": checkups[host]["spare_port"],
            "peers": {peer: place for peer, place in places.items() if peer != host},
            "rounds": schedule[host],
            "seconds": _QUICK_S if quick else _TRANSFER_S,
            "both": not quick,
        }
        answer = play.call(host, "doctor", checkups[host]["host_python"], request)
        return dict(_LINKS(answer))

    answers, failed = ask_all(hosts, one, _MEASURE_S + _ROUND_S * len(hosts))
    examined["failed"].update(reports.bounded(failed))
    examined["links"] = {
        host: {peer: answer["links"][peer] for peer in hosts if peer in answer["links"]}
        for host, answer in answers.items()
    }
    return [
        f"{host} cannot listen on port {places[host][1]}: {answer['listen_error']}"
        for host, answer in answers.items()
        if answer["listen_error"]
    ]
