"""Leases the ports and GPUs of a gang, and makes its ranks ready and starts them."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from train.gang import (
    connections,
    events,
    host_programs,
    leasing,
    login_check,
    login_failures,
    machine_calls,
    reports,
)
from train.gang.connections import Args, Returned
from train.gang.errors import UnreachableError, UserError
from train.gang.job_records import Manifest
from train.gang.machine_calls import Machine, MachineCalls
from train.gang.plan import placement, withdrawal
from train.host import rank_files

#: Maximum size in bytes of an archive that is sent with the call. A larger one is copied to the
#: machine first, which takes four more commands.
_SENT = 512 << 10
#: Maximum number of commands at once.
_AT_ONCE = 100
#: Maximum number of supervisors that one command starts, whose length the kernel limits.
_IN_COMMAND = 100
#: Options of ``gang_stage`` that are the same for all hosts, and parts of a host's result.
_SHARED = ("manifest", "readable_by", "force")
_STAGED = ("rank", "overtaken", "stopped")


def lease(play: connections.Play, args: Args) -> dict[str, object]:
    """Wait for the job's ports and GPUs, and lease them. Hosts need no files of the job yet.

    If that fails, withdraw the attempt. Then raise UserError or, if the job was stopped, return a
    failed result with ``stopped``.
    """
    manifest: Manifest = args["manifest"]
    run_dir = Path(args["run_dir"])
    tasks = {rank["host"]: rank["task"] for rank in manifest["ranks"]}

    def ask(host: str, request: leasing.Request) -> Mapping[str, object]:
        python = manifest["hosts"][host]["host_python"]
        return play.call(host, "leases", python, {"call": "lease", **request})

    def note(host: str, text: str) -> None:
        about = {"task": tasks[host], "host": host, "phase": "waiting" if text else "ready"}
        unknown: dict[str, object] = {"exit_code": None, "progress": {}, "age": None}
        events.write(run_dir, **about, **unknown, reason=text, last_line=text)

    requests, limit = leasing.requests_of(manifest), float(args["unreachable_timeout"])
    waiting = leasing.Waiting(requests, ask, connections.say, note, limit)
    try:
        waiting.take(float(args["wait"]))
    except leasing.JobStoppedError as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        message = f"nothing was started: the job {error}"
        return {"failed": True, "msg": message, "stopped": str(error)}
    except (leasing.LeasingError, OSError) as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        raise UserError(f"nothing was started: {error}") from error
    return {}


def stage(play: connections.Play, args: Args) -> dict[str, object]:
    """Make the ranks of an attempt ready. Return the result of each host as ``hosts``.

    It has ``rank``, which is records.RankInfo, or ``failed`` or ``unreachable`` with a ``msg``. The
    scripts' environments are added here, so that they are not in an argument or a result that could
    be printed. Raise UserError or OSError if that is not possible.
    """
    machines = machine_calls.machines(play, args["hosts"], args["beside"], str(args["options"]))
    template = Path(args["template"]).read_text(encoding="utf-8")
    for machine in machines:
        for host, options in machine.requests.items():
            spec = json.loads(play.rendered(host, rank_files.RANK_FILE, template))
            spec["environment"] = play.environment(host)
            machine.requests[host] = {**options, "spec": json.dumps(spec)}
    archive, shared = Path(args["archive"]), {name: args[name] for name in _SHARED}
    shared["call"] = "rank_stages"
    content = b""
    if archive.stat().st_size <= _SENT:
        content = base64.b64encode(archive.read_bytes())

    def call(machine: Machine) -> dict[str, Returned]:
        if content:
            given = {**shared, "content": content.decode()}
            return machine_calls.call(play, machine, given, _STAGED)
        with _copied(machine.action, archive) as path:
            return machine_calls.call(play, machine, {**shared, "archive": path}, _STAGED)

    found = MachineCalls(play, machines, "stage", call).results()
    return {"changed": True, "hosts": found, "warnings": machine_calls.warnings(found)}


@contextlib.contextmanager
def _copied(action: Any, archive: Path) -> Iterator[str]:
    """Copy an archive to the action's host, and yield its path there. Then remove it."""
    folder = action._make_tmp_path()
    try:
        path = action._connection._shell.join_path(folder, "job.tgz")
        action._transfer_file(str(archive), path)
        action._fixup_perms2((folder, path))
        yield path
    finally:
        action._remove_tmp_path(folder, force=True)


def start(play: connections.Play, args: Args) -> dict[str, object]:
    """Start the supervisors of all staged ranks. Return the result of each host as ``hosts``.

    The supervisors move into the background as soon as they work. The result has ``started``, and a
    ``msg`` if the supervisor did not start.
    """
    staged = {host: play.registered(host, args["registered"])["rank"] for host in args["hosts"]}

    def start_some(hosts: list[str]) -> dict[str, Returned]:
        try:
            action = play.action_of(hosts[0], "start")
            ranks = {host: staged[host] for host in hosts}
            try:
                return _start(action, play.environment_of(hosts[0]), ranks)
            except AnsibleConnectionFailure as error:
                failed = login_check.explain(str(error), action._connection)
                lost: Returned = {"started": False, "unreachable": True, "msg": failed.text}
                return dict.fromkeys(hosts, lost)
        except Exception as error:  # the watch reports the ranks and stops the gang
            failed_start: Returned = {"started": False, "msg": str(error) or repr(error)}
            return dict.fromkeys(hosts, failed_start)

    connections.allow_many_connections()
    groups = _together(play, staged, args["beside"])
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups))) as pool:
        found = {host: one for some in pool.map(start_some, groups) for host, one in some.items()}
    return {"changed": True, "hosts": {host: found[host] for host in staged}}


def _together(
    play: connections.Play, staged: Mapping[str, Mapping[str, Any]], beside: Mapping[str, list[str]]
) -> list[list[str]]:
    """Return groups of inventory hosts whose supervisors one command can start.

    They have the same machine, connection, interpreter and environment.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for host, rank in staged.items():
        names, key = beside.get(host, [host]), (host, "")
        if len(names) > 1:
            # If that fails, the separate command of this host fails, and reports it.
            with contextlib.suppress(Exception):
                play.action_of(host, "start")
                same = play.values(host, *play.names_of_connection_settings(host))
                same |= {"program": [rank["host_python"], play.environment_of(host)]}
                if isinstance(rank["rank_dir"], str):
                    key = (names[0], json.dumps(same, sort_keys=True, default=str))
        groups.setdefault(key, []).append(host)
    return [
        hosts[first : first + _IN_COMMAND]
        for hosts in groups.values()
        for first in range(0, len(hosts), _IN_COMMAND)
    ]


def _start(
    action: Any, environment: str, ranks: Mapping[str, Mapping[str, Any]]
) -> dict[str, Returned]:
    """Start the supervisors of ranks by inventory host, with one command."""
    first, *_ = ranks.values()
    folders = [rank["rank_dir"] for rank in ranks.values()]
    launcher_dir = shlex.quote(f"{folders[0]}/{rank_files.LAUNCHER_DIR}")
    words = [first["host_python"], "-S", "-E", rank_files.PROGRAMS_FILE, "train.host.supervisor"]
    answer = host_programs.ask(
        action, f"cd {launcher_dir} && {environment} {shlex.join([*words, *folders])}"
    )
    failed = (answer.value or {}) if answer.code else {}
    if answer.code and not failed:
        failed = dict.fromkeys(folders, answer.text or f"exit code {answer.code}, no output")

    def result_of(folder: str) -> Returned:
        if folder not in failed:
            return {"started": True}
        why = reports.bounded(str(failed[folder]))
        return {"started": False, "msg": f"the supervisor did not start: {why}"}

    return {host: result_of(rank["rank_dir"]) for host, rank in ranks.items()}


def unstage(play: connections.Play, args: Args) -> dict[str, object]:
    """Withdraw an attempt that cannot start: here, and on the hosts of all of its ranks.

    Ports and GPUs are released, and the ranks' folders removed or restored. Always raise UserError,
    so that the play ends.
    """
    manifest: Manifest = args["manifest"]
    attempt = manifest["attempts"][-1]
    withdrawal.withdraw(Path(args["run_dir"]), int(manifest["attempt"]))
    shared = {name: manifest[name] for name in ("job", "attempt", "created_at")}
    shared |= {"call": "rank_unstage", "claim": attempt["claim"]}

    def undo(host: str, task: str) -> str:
        facts = manifest["hosts"][host]
        folders = {name: facts[name] for name in ("root", "lease_dir")}
        try:
            play.call(host, "stage", facts["host_python"], {**shared, **folders, "task": task})
        except (UnreachableError, AnsibleError, OSError) as error:  # it always fails
            return str(reports.bounded(str(error)))
        return "did not report"

    tasks = {rank["host"]: rank["task"] for rank in manifest["ranks"]}
    connections.allow_many_connections()
    with ThreadPoolExecutor(min(_AT_ONCE, len(tasks))) as pool:
        said = dict(zip(tasks, pool.map(undo, tasks, tasks.values()), strict=True))
    reasons = placement.by_reason(said)
    if len(reasons) == 1:
        raise UserError(*reasons)
    raise UserError(
        "\n".join(f"{login_failures.names_of(hosts)}: {why}" for why, hosts in reasons.items())
    )


def require_staged(play: connections.Play, args: Args) -> dict[str, object]:
    """Return a failed result unless all ranks of an attempt are staged and can start together."""
    lost: dict[str, login_failures.LoginFailure] = {}
    lacking: dict[str, str] = {}
    flags: dict[str, object] = {}
    for host in args["hosts"]:
        staged = play.registered(host, args["registered"])
        if staged.get("unreachable"):
            lost[host] = login_failures.of_result(staged)
        elif (staged.get("rank") or {}).get("attempt") != int(args["attempt"]):
            lacking[host] = reports.bounded(str(staged.get("msg") or "did not receive the code"))
            flags |= {name: staged[name] for name in ("overtaken", "stopped") if name in staged}
    if not (lost or lacking):
        return {}
    if not lacking:
        flags["nothing_answered"] = True  # the hosts' own results have the reasons
    named = [
        f"{login_failures.names_of(hosts)}: {reason}"
        for reason, hosts in placement.by_reason(lacking).items()
    ]
    return {**flags, "failed": True, "msg": "\n".join([*login_failures.merged(lost), *named])}
