"""Waits for a job's next attempt, and decides how to proceed if it cannot start.

``watch.causes`` decides whether there is another attempt at all. The results of ``await_restart``
and ``judge_refusal`` contain ``then``, the role's next task file.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.gang import cause_names, connections, events, login_failures, reports
from train.gang.connections import Args
from train.gang.errors import UnreachableError, UserError
from train.gang.job_records import Manifest, ResultRecord
from train.gang.plan import placement
from train.gang.run_folders import read_manifest
from train.gang.watch import causes, watching
from train.host import end_causes

Returned = dict[str, object]

#: Possible next task files of roles/train_job.
WATCH, ATTACH, RESTART, END = "watch.yml", "attach.yml", "restart.yml", "end.yml"
#: Outcomes of the command that replaces lost hosts.
REPLACED, NOT_REPLACED = "replaced", "failed"

#: Seconds between two requests to a host, and before a refused attempt is retried. The latter
#: doubles each time, up to the longest pause.
_POLL_S, _LONGEST_PAUSE_S = 2.0, 30.0
#: Seconds between two checks of the hosts' answers.
_PAUSE_S = 0.2
#: Maximum random delay in seconds after another control node was faster, so that the two do not
#: collide again.
_JITTER_S = 5.0
#: Seconds in which the host that watches the job is expected to start the next attempt.
_DEFERENCE_S = 10.0
#: Seconds to wait for requests to end. ssh gives up on a lost host after ten.
_END_S = 15.0

#: Returns how the job was stopped on a host, or an empty string if it was not stopped. Raises
#: UnreachableError or OSError.
Ask = Callable[[str], str]


class AwaitedHosts:
    """Asks hosts repeatedly whether they answer and whether the job was stopped there.

    Each host is asked in a separate thread.
    """

    def __init__(self, names: Sequence[str], ask: Ask) -> None:
        self._ask, self._names = ask, names
        self._seen: dict[str, str | Exception] = {}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(name,), daemon=True) for name in names
        ]
        for thread in self._threads:
            thread.start()

    def _watch(self, name: str) -> None:
        while not self._over.is_set():
            try:
                self._seen[name] = self._ask(name)
            except (UnreachableError, OSError) as error:
                self._seen[name] = error
            self._over.wait(_POLL_S)

    @property
    def stopped(self) -> str:
        """How the job was stopped, to complete the sentence ``the job ...``; empty if it was not.

        Hosts that have not answered yet are ignored.
        """
        seen = list(self._seen.values())
        return next((how for how in seen if how and not isinstance(how, Exception)), "")

    @property
    def are_known(self) -> bool:
        """Whether every host has answered or failed to answer."""
        return len(self._seen) == len(self._names)

    @property
    def unreachable(self) -> dict[str, str]:
        """The reasons why hosts cannot be reached, by host name."""
        seen = list(self._seen.items())
        return {host: str(why) for host, why in seen if isinstance(why, UnreachableError)}

    def close(self) -> None:
        """Stop asking, and wait at most _END_S seconds until pending requests have ended."""
        self._over.set()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def await_restart(play: connections.Play, args: Args) -> Returned:
    """Wait until the next attempt is due.

    After a refused attempt, also wait for lost hosts, for up to
    ``train_job_restart_host_timeout`` seconds. Wait longer only while none of the job's hosts can
    be reached.

    The result contains ``attempt``, the number of the next attempt, and ``min_workers``, which is 0
    while all hosts are required. A job that ``grows``, or that was ``preempted``, does not wait for
    missing hosts if it may have fewer workers. The ``controller``, a host that watches the job, is
    given the time to start the attempt first. After its attempt was refused, a job that grows
    continues ``without`` the hosts that were to join. Hosts that were ``replaced`` (the result of
    ``replacing.replace``) are awaited like lost ones.
    """
    run_dir, before = Path(args["run_dir"]).expanduser(), args["before"]
    manifest = read_manifest(run_dir.name, run_dir.parent)
    is_retry = before.get("then") == RESTART and "refusals" in before
    refusals = int(before["refusals"]) if is_retry else 0
    failed_at = float(before["failed_at"]) if is_retry else time.time()
    ended = causes.last_result(run_dir)
    grows, preempted = bool(before.get("grows")), bool(before.get("preempted"))
    without = {}
    if is_retry:
        without = dict(before.get("without") or {})
        pause = causes.doubled(_POLL_S, refusals - 1, _LONGEST_PAUSE_S)
    else:
        cause = ended.get("cause") if ended is not None else None
        grows, preempted = cause == cause_names.GROWN, cause == end_causes.PREEMPTED
        pause = float(ended["restart_delay"]) if ended else 0.0
        pause += random.uniform(0.0, _JITTER_S) if before.get("overtaken") else 0.0
        controller = str(args.get("controller") or "")
        pause += _DEFERENCE_S if controller and controller not in args["lost_hosts"] else 0.0
    replaced = args.get("replaced") or {}
    if replaced.get("stopped"):
        return _stopped(play, run_dir, str(args["metrics_dir"]), str(replaced["stopped"]))
    replacement = str(replaced.get("outcome") or "")
    if replacement == REPLACED:  # new hosts have as much time to start as lost ones to return
        failed_at = time.time()
    elif not replacement and is_retry:
        replacement = str(before.get("replacement") or "")
    is_planned = (grows or preempted) and replacement != REPLACED
    groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
    names = [host for hosts in groups.values() for host in hosts]
    if not is_retry:  # lost hosts would only delay the others
        names = [host for host in names if host not in args["lost_hosts"]] if pause else []
    hosts = AwaitedHosts(names, lambda host: how_stopped(play, manifest, host))
    due, is_patient = time.monotonic() + pause, True
    try:
        while not hosts.stopped:
            if is_retry and hosts.are_known:
                if is_cut_off(manifest, hosts.unreachable):
                    failed_at = time.time()
                elif is_enough(groups, hosts.unreachable, manifest):
                    is_retry = False
            is_patient = time.time() - failed_at < float(manifest["policy"]["host_wait"])
            if time.monotonic() >= due and not (is_retry and is_patient and not without):
                break
            left = due - time.monotonic()
            time.sleep(left if 0 < left < _PAUSE_S else _PAUSE_S)
        if hosts.stopped:
            return _stopped(play, run_dir, str(args["metrics_dir"]), hosts.stopped)
    finally:
        hosts.close()
    return {
        "job": run_dir.name,
        "then": WATCH,
        "attempt": manifest["attempt"] + 1,
        "min_workers": 0 if is_patient and not is_planned else manifest["policy"]["min_workers"],
        "grows": grows,
        "preempted": preempted,
        "without": without,
        "replacement": replacement,
        "is_patient": is_patient,
        "failed_at": failed_at,
        "refusals": refusals,
        "overtaken": bool(before.get("overtaken")),
    }


def how_stopped(play: connections.Play, manifest: Manifest, host: str) -> str:
    """Return how a job was stopped on a host; an empty string if it was not.

    Raise UnreachableError or OSError.
    """
    facts = manifest["hosts"].get(host)
    if facts is None:  # not yet part of the job
        play.run(host, "restart", ["printf", "{}"], ".")
        return ""
    request = {"call": "stop_request", "root": facts["root"], "job": manifest["job"]}
    answer = play.call(host, "restart", facts["host_python"], request)
    return str(reports.bounded(answer.get("stopped") or ""))


def is_cut_off(manifest: Manifest, unreachable: Mapping[str, str]) -> bool:
    """Return whether none of the job's hosts can be reached.

    In that case the control node itself has no network, whatever state the hosts are in.
    """
    members = {rank["host"] for rank in manifest["ranks"]}
    return bool(members) and members <= set(unreachable)


def is_enough(
    groups: Mapping[str, Sequence[str]], unreachable: Mapping[str, str], manifest: Manifest
) -> bool:
    """Return whether the reachable hosts are enough for the job."""
    earlier = [rank["host"] for rank in manifest["ranks"]]
    try:
        placement.choose(groups, unreachable, earlier=earlier)
    except UserError:
        return False
    return True


def judge_refusal(play: connections.Play, args: Args) -> Returned:
    """Decide how to proceed after an attempt could not start.

    Follow the attempt if another control node has started it, end the job if it was stopped,
    continue as before if the job was to grow, try again if lost hosts may return, or else let the
    job fail.
    """
    run_dir, tried = Path(args["run_dir"]).expanduser(), dict(args["tried"])
    refusal = _refusal(play, args["gang_steps"])
    if refusal.get("overtaken"):
        return {**tried, "then": ATTACH, "overtaken": True}
    if refusal.get("stopped"):
        return _stopped(play, run_dir, str(args["metrics_dir"]), str(refusal["stopped"]))
    manifest = read_manifest(run_dir.name, run_dir.parent)
    lost = _unreachable(play, str(args["checks"]), args["host_steps"])
    lines = login_failures.merged(lost)
    if not refusal.get("nothing_answered"):
        lines.append(str(refusal["msg"]))
    message = "\n".join(lines)
    members = _last_members(manifest)
    if tried.get("grows") and not tried.get("without") and not members.intersection(lost):
        return _as_before(play, run_dir, tried, members, message)
    cut_off = is_cut_off(manifest, dict.fromkeys(lost, ""))
    if cut_off or tried["is_patient"]:
        failed_at = time.time() if cut_off else tried["failed_at"]
        refusals = tried["refusals"] + 1
        if refusals == 1:
            limit = f"train_job_restart_host_timeout: {manifest['policy']['host_wait']:g} s"
            text = f"attempt {tried['attempt']} waits for its hosts ({limit}): {message}"
            connections.say(text)
            about = {"kind": "waiting", "task": None, "text": text}
            events.write(run_dir, notice=about)
        waiting = {"failed_at": failed_at, "refusals": refusals}
        gone = [] if cut_off else sorted(members.intersection(lost))
        return {**tried, **waiting, "then": RESTART, "gone": gone}
    causes.give_up(run_dir, message)
    return _ended(play, run_dir, str(args["metrics_dir"]))


def _last_members(manifest: Manifest) -> set[str]:
    """Return the hosts of the job's last attempt that was started."""
    started = [attempt for attempt in manifest["attempts"] if attempt["staged"]]
    return set(started[-1]["ranks"].values()) if started else set()


def _as_before(
    play: connections.Play, run_dir: Path, tried: Returned, members: set[str], message: str
) -> Returned:
    """Return how a job continues that should have grown, but could not start with more hosts."""
    joining = [host for host in play.hosts if host not in members]
    text = f"the job continues without {login_failures.names_of(joining)}: {message}"
    connections.say(text)
    events.write(run_dir, notice={"kind": "growing", "task": None, "text": text})
    why = f"the job could not start with it: {message.partition(chr(10))[0]}"
    return {**tried, "then": RESTART, "without": dict.fromkeys(joining, why), "refusals": 1}


def _refusal(play: connections.Play, steps: Sequence[str]) -> Mapping[str, Any]:
    """Return the result of the task that refused the attempt."""
    for name in steps:
        registered = play.of_gang(name)
        if registered.get("failed"):
            return registered
    failed = (play.registered(host, "ansible_failed_result") for host in play.hosts)
    found = next(filter(None, failed), {})
    return {**found, "msg": str(found.get("msg") or "a task failed")}


def _unreachable(
    play: connections.Play, checks: str, steps: Sequence[str]
) -> dict[str, login_failures.LoginFailure]:
    """Return the hosts that could not be reached during this start, with the reasons."""
    checked, found = play.checks(checks), {}
    for host in play.hosts:
        for result in [checked.get(host, {}), *(play.registered(host, name) for name in steps)]:
            if result.get("unreachable"):
                found[host] = login_failures.of_result(result)
    return found


def _stopped(play: connections.Play, run_dir: Path, metrics_dir: str, how: str) -> Returned:
    """Record that the job was stopped between two attempts; return its end (see ``_ended``)."""
    causes.stop_before_next(run_dir, how)
    return _ended(play, run_dir, metrics_dir)


def _ended(play: connections.Play, run_dir: Path, metrics_dir: str) -> Returned:
    """Send the notifications about the job's end, and return the result from ``result.json``."""
    result: ResultRecord | None = causes.last_result(run_dir)
    warnings = watching.notify_end(play, run_dir, metrics_dir)
    return {"job": run_dir.name, "then": END, "result": result, "warnings": warnings}
