"""Follows the use of all hosts, and the jobs on them, for the dashboard.

One thread per machine asks it at regular intervals over one connection. All answers are merged into
one file, which the dashboard reads for all of its viewers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.gang import connections, launcher, listing, login_failures, reports
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import OVERVIEW_FILE, HostState, Listed
from train.host import json_files, plain_text
from train.host.records import ListedJob

#: The program of train/host that answers, and the purpose of the connections.
_PROGRAM = "usage"
#: Seconds between two attempts to reach a host, and between two checks for new answers.
_RETRY_S, _POLL_S = 1.0, 0.25
#: Seconds between two logins to a host that rejects them.
_REJECTED_RETRY_S = 60.0


@dataclass
class _Machine:
    """Inventory hosts that are the same machine with the same folders, and its last answer."""

    hosts: list[str]
    request: dict[str, Any]
    state: HostState = field(
        default_factory=lambda: HostState(answered_at=None, error="", usage=None, holds=[])
    )
    jobs: list[ListedJob] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)


class Overview:
    """Asks all machines of a play, and merges their answers."""

    def __init__(self, play: connections.Play, interval: float) -> None:
        self._play, self._interval = play, interval
        self._machines = _machines(play)
        self._changed = threading.Event()
        self._over = threading.Event()

    def follow(self, path: Path) -> None:
        """Write the overview into a file whenever it changes, until this process is ended."""
        self._write(path)
        for machine in self._machines:
            threading.Thread(target=self._ask, args=(machine,), daemon=True).start()
        while not self._over.is_set():
            if self._changed.wait(_POLL_S):
                self._changed.clear()
                self._write(path)

    def _ask(self, machine: _Machine) -> None:
        """Ask a machine until the end. Runs in a thread, which no error may end."""
        compiled_for = ""
        while not self._over.is_set():
            pause = self._interval
            try:
                archive = launcher.archive_of(_PROGRAM, compiled_for)
                first = machine.hosts[0]
                answer = self._play.call(first, "overview", "", machine.request, archive)
                found = reports.used(answer)
                machine.jobs, _ = reports.listing(answer.get("jobs"))
                compiled_for, machine.owners = found["compiled_for"], found["owners"]
                machine.state = HostState(
                    answered_at=time.time(),
                    error="",
                    usage=found["usage"],
                    holds=found["holds"],
                )
            except Exception as error:
                text = plain_text.clean(str(error) or type(error).__name__, reports.MAX_REASON)
                machine.state = {**machine.state, "error": text}
                is_rejected = getattr(error, "kind", "") in login_failures.REJECTED
                pause = _REJECTED_RETRY_S if is_rejected else _RETRY_S
            self._changed.set()
            self._over.wait(pause)

    def _write(self, path: Path) -> None:
        json_files.write_json(str(path), merge(self._machines), mode=0o600, durable=False)


def merge(machines: Sequence[Any]) -> Listed:
    """Return the overview of all machines."""
    hosts = {host: machine.state for machine in machines for host in machine.hosts}
    merged = listing.merge({machine.hosts[0]: machine.jobs for machine in machines})
    owners = {job: owner for machine in machines for job, owner in machine.owners.items()}
    jobs = [{**listing.public(job), "owner": owners.get(job["job"], "")} for job in merged]
    return {"at": time.time(), "hosts": hosts, "jobs": jobs}


def _machines(play: connections.Play) -> list[_Machine]:
    """Return the machines of a play. Hosts with different folders count as different machines."""
    beside = play.neighbors()
    found: dict[tuple[str, ...], _Machine] = {}
    for host in play.hosts:
        names = ("train_job_root", "train_job_lease_dir")
        values = play.values(host, *names)
        root, lease_dir = (str(values[name]) for name in names)
        key = (beside[host][0], root, lease_dir)
        request = {"call": _PROGRAM, "root": root, "lease_dir": lease_dir}
        found.setdefault(key, _Machine([], request)).hosts.append(host)
    return list(found.values())


def follow(play: connections.Play, args: Args) -> Mapping[str, object]:
    """Write the overview of all hosts into ``folder``, until the playbook is interrupted."""
    connections.allow_many_connections()
    folder = Path(args["folder"])
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: it must exist, readable only by its owner")
    Overview(play, float(args["interval"])).follow(folder / OVERVIEW_FILE)
    return {}
