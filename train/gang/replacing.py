"""Replaces hosts that a job has lost, with a command of the user (``train_job_replace``).

The command runs on the control node between two attempts. Afterwards, the variables of these hosts
are read from the inventory again, because a new host has another address.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.gang import connections, events, local_command, restarting
from train.gang.connections import Args, Returned
from train.gang.errors import UserError
from train.gang.job_records import Manifest
from train.gang.local_command import LocalCommand
from train.gang.login_failures import names_of
from train.gang.run_folders import read_manifest
from train.gang.variables import job_variables

COMMAND = job_variables.REPLACE
#: The file for the command's output, in the job's folder.
LOG_FILE = "replace.log"
#: Seconds between two checks of the hosts' answers and of the command.
_PAUSE_S = 0.2
#: Maximum seconds to wait for the end of hosts that got a notice.
_LONGEST_S = 130.0


def replace(play: connections.Play, args: Args) -> Returned:
    """Replace the hosts that the last attempt has lost, unless there are enough spare hosts.

    The result contains the ``outcome``: REPLACED, NOT_REPLACED, or an empty string if the command
    did not run. Then follow ``hosts`` and ``ranks``, whose variables may be different now: see
    ``connections.Play.update_host``. If the job was ``stopped`` meanwhile, so is the command.
    """
    run_dir, before = Path(args["run_dir"]).expanduser(), args["before"]
    manifest = read_manifest(run_dir.name, run_dir.parent)
    nothing: Returned = {"outcome": "", "stopped": "", "hosts": [], "ranks": []}
    leaving, lost = _lost(args, manifest)
    controller = str(args["controller"])
    others = controller and controller not in lost  # the host that watches the job replaces hosts
    command = _command(play)
    if not command or not lost or others or before.get("replacement"):
        return nothing
    groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
    names = [host for hosts in groups.values() for host in hosts]
    with _Asking(play, manifest, names, lost, leaving) as asking:
        asking.wait_for_answers()
        missing = {**asking.unreachable, **dict.fromkeys(lost, "")}
        # If no host of the job answers, this machine has no network, unless all got notices.
        is_cut_off = restarting.is_cut_off(manifest, missing) and not leaving
        if is_cut_off or restarting.is_enough(groups, missing, manifest):
            return {**nothing, "stopped": asking.stopped()}
        asking.wait_for_ends()
        if asking.stopped():
            return {**nothing, "stopped": asking.stopped()}
        machines = list(dict.fromkeys(map(play.machine_of, lost)))
        problem = _run(run_dir, command, machines, manifest, float(args["timeout"]), asking)
        if asking.stopped():
            return {**nothing, "stopped": asking.stopped()}
    if problem:
        return {**nothing, "outcome": restarting.NOT_REPLACED}
    members = {play.machine_of(rank["host"]) for rank in manifest["ranks"]} - {*machines}
    return {**nothing, "outcome": restarting.REPLACED, **_changing(play, run_dir, names, members)}


def update(play: connections.Play, args: Args) -> Returned:
    """Read a host's variables from the inventory again, and return the task's result.

    If the inventory has become invalid since ``replace``, the variables are kept.
    """
    with contextlib.suppress(UserError):
        return play.update_host(str(args["name"])) or {}
    return {}


def _command(play: connections.Play) -> str:
    """Return the command. It may contain a secret, so it is not an argument of the task."""
    return str(play.values(play.host, COMMAND).get(COMMAND) or "").strip()


def _lost(args: Args, manifest: Manifest) -> tuple[Mapping[str, Any], list[str]]:
    """Return the hosts of the last attempt that got notices, and all that it has lost.

    Before the first attempt to start the gang again, these are the hosts that the watch has lost.
    Afterwards, they are those that did not answer when the gang was to start.
    """
    before = args["before"]
    if "refusals" in before:
        return {}, list(before.get("gone") or ())
    members = list(dict.fromkeys(rank["host"] for rank in manifest["ranks"]))
    leaving = {host: end for host, end in args["leaving"].items() if host in members}
    return leaving, [host for host in members if host in leaving or host in args["lost_hosts"]]


class _Asking:
    """Asks a job's hosts whether they answer, and whether the job was stopped there.

    Args:
        names: all inventory hosts of the job.
        lost: those that the last attempt has lost.
        leaving: when those of them that got a notice will have ended (see ``outcome.leaving``).
    """

    def __init__(
        self,
        play: connections.Play,
        manifest: Manifest,
        names: Sequence[str],
        lost: Sequence[str],
        leaving: Mapping[str, Any],
    ) -> None:
        def ask(host: str) -> str:
            return restarting.how_stopped(play, manifest, host)

        self._ends = leaving
        self._others = restarting.AwaitedHosts([name for name in names if name not in lost], ask)
        self._leaving = restarting.AwaitedHosts(list(leaving), ask)

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        for hosts in (self._others, self._leaving):
            hosts.close()

    def stopped(self) -> str:
        """Return how the job was stopped; an empty string if it was not."""
        return self._others.stopped or self._leaving.stopped

    @property
    def unreachable(self) -> Mapping[str, str]:
        """Why hosts that are not lost cannot be reached, by host."""
        return self._others.unreachable

    def wait_for_answers(self) -> None:
        """Wait until all hosts that are not lost have answered or failed to answer."""
        while not (self.stopped() or self._others.are_known):
            time.sleep(_PAUSE_S)

    def wait_for_ends(self) -> None:
        """Wait until the hosts that got a notice have ended."""
        limit = time.monotonic() + _LONGEST_S  # the clock of a host may be wrong
        while not self.stopped() and any(map(self._is_up, self._ends)) and time.monotonic() < limit:
            time.sleep(_PAUSE_S)

    def _is_up(self, host: str) -> bool:
        end = self._ends[host]
        is_off = end["may_be_off"] and host in self._leaving.unreachable
        return time.time() < float(end["until"]) and not is_off


def _run(
    run_dir: Path,
    command: str,
    machines: Sequence[str],
    manifest: Manifest,
    timeout: float,
    asking: _Asking,
) -> str:
    """Run the command for lost machines. Return how it failed, or an empty string.

    It is ended when the job is stopped.
    """
    log, job, began = run_dir / LOG_FILE, manifest["job"], time.monotonic()
    attempt, named = manifest["attempt"] + 1, names_of(machines)
    environment = {
        **local_command.environment(),
        "TRAIN_JOB": job,
        "TRAIN_ATTEMPT": str(attempt),
        "TRAIN_LOST_HOSTS": ",".join(machines),
        "TRAIN_RUN_DIR": str(run_dir),
    }
    heading = f"attempt {attempt}: replacing {named}"
    _show(run_dir, f"replacing {named} ({COMMAND}), log: {log}")
    request: local_command.Request = {
        "command": command,
        "environment": environment,
        "log": str(log),
        "heading": heading,
        "timeout": timeout,
    }
    try:
        running = LocalCommand(request)
    except OSError as error:
        problem = f"could not be started: {error.strerror}"
    else:
        while not (running.is_over or asking.stopped()):
            time.sleep(_PAUSE_S)
        if not running.is_over:
            running.end()
        problem = running.problem()
    if asking.stopped():
        return problem
    if problem:
        _show(run_dir, f"{named} could not be replaced: {COMMAND} {problem}, log: {log}")
    else:
        seconds = time.monotonic() - began
        _show(run_dir, f"{COMMAND} completed in {seconds:.0f} s: attempt {attempt} follows")
    return problem


def _changing(
    play: connections.Play, run_dir: Path, names: Sequence[str], members: set[str]
) -> Returned:
    """Return the ``hosts`` to read from the inventory again, and their further ``ranks``.

    These are all hosts without a rank that continues: others may have been replaced as well.

    Args:
        members: the machines of the ranks that continue.
    """
    machines = [play.machine_of(name) for name in names]
    hosts: list[str] = []
    missing: list[str] = []
    for host in dict.fromkeys(machine for machine in machines if machine not in members):
        try:
            (hosts if play.update_host(host) is not None else missing).append(host)
        except UserError as error:
            _show(run_dir, f"addresses of new hosts are unknown: {error}")
            return {}
    if missing:
        _show(run_dir, f"the inventory lacks {names_of(missing)} now: its variables are kept")
    ranks = [
        {
            "name": name,
            "machine": machine,
            "slot": int(play.values(name, connections.SLOT)[connections.SLOT]),
        }
        for name, machine in zip(names, machines, strict=True)
        if machine in hosts and machine != name
    ]
    return {"hosts": hosts, "ranks": ranks}


def _show(run_dir: Path, text: str) -> None:
    """Show and record a line about the replacement."""
    connections.say(text)
    events.write(run_dir, notice={"kind": "replacing", "task": None, "text": text})
