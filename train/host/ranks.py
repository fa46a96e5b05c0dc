"""Determines the state of a rank from its folder and from /proc, and ends its processes."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, cast

from . import (
    end_causes,
    json_files,
    leases,
    plain_text,
    ports,
    processes,
    progress_records,
    rank_environment,
    rank_files,
    records,
    tail,
)

STOP_FILE = "stop.json"
#: File with space that the supervisor reserves, so that the last state fits on a full disk.
RESERVE_FILE = "reserve"
#: Beginning of the last line in the log of a supervisor that has failed.
CRASHED = "the supervisor failed: "
#: Maximum seconds that a supervisor needs after the last SIGKILL: it waits for the processes that
#: it has killed (5 s), and reads the rank's files.
_LAST_STATE_S = 7.0
#: Bytes to read from the end of a log and of progress records.
TAIL = 65_536
#: Seconds for which a process that does not belong to a rank is not examined again.
_KNOWN_S = 10.0
#: Seconds to wait for the kernel and the driver to free port and GPUs.
_FREE_S = 5.0
#: Files that each attempt creates again; all others in a rank's folder stay.
_OF_ATTEMPT = (
    rank_files.RANK_FILE,
    rank_files.TF_CONFIG_FILE,
    rank_files.STATE_FILE,
    rank_files.LOG_FILE,
    rank_files.PROGRESS_FILE,
    rank_files.STACKS_FILE,
    rank_files.PREEMPT_FILE,
    STOP_FILE,
    rank_files.SUPERVISOR_LOG_FILE,
)


def observe(rank_dir: str) -> records.RankState:
    """Return the rank's ``state.json``, corrected if its processes no longer run.

    A rank that is alive in the file but whose supervisor is gone has failed. ``frozen`` means that
    the script was stopped by a signal.
    """
    try:
        state = cast(Optional[records.RankState], json_files.read_json(_state_file(rank_dir)))
    except ValueError as error:
        reason = "has an unreadable state: %s" % error
        return {"phase": records.FAILED, "cause": end_causes.SUPERVISOR, "reason": reason}
    if state is None:
        return {"phase": records.ABSENT}
    if state.get("phase") not in records.ALIVE_PHASES:
        return state
    # A restarted container runs on the same kernel as before.
    restarted = state.get("init_start") not in (None, processes.init_start())
    if restarted or state.get("boot_id") != processes.boot_id():
        reason = "ended when its host rebooted"
        return {**state, "phase": records.FAILED, "cause": end_causes.REBOOT, "reason": reason}
    if not processes.is_alive(state.get("supervisor_pid"), state.get("supervisor_start")):
        # It may have written its last state meanwhile.
        last = noted(rank_dir)
        return last if last.get("phase") in records.FINAL_PHASES else orphaned(rank_dir, state)
    if processes.is_stopped(state.get("pid")):
        return {**state, "frozen": True}
    return state


def reported(rank_dir: str) -> records.RankState:
    """Return the state of a rank as commands report it, see ``observe``.

    A staged rank without a state counts as starting while its lease is valid, and as failed after
    that.
    """
    state = observe(rank_dir)
    spec = specification(rank_dir)
    if state["phase"] != records.ABSENT or not spec:
        return state
    age = time.time() - os.stat(os.path.join(rank_dir, rank_files.RANK_FILE)).st_mtime
    about: records.RankState = {"phase": records.FAILED, "attempt": spec.get("attempt", 1)}
    if age < leases.seconds_until_start(spec):
        about["phase"] = records.STARTING
        return {**about, "reason": "was prepared %.0f s ago but has not started yet" % age}
    return {**about, "reason": "was prepared but never started"}


def write_unstarted(rank_dir: str, spec: records.RankSpec, reason: str) -> None:
    """Write the state of a staged rank that will not be started."""
    state: records.RankState = {
        "version": records.FORMAT_VERSION,
        "job": spec["job"],
        "task": spec["task"],
        "attempt": spec["attempt"],
        "port": spec["port"],
        "phase": records.STOPPED,
        "cause": end_causes.STOPPED,
        "reason": reason,
        "exit_code": None,
        "ended_at": round(time.time(), 3),
    }
    write_state(rank_dir, state)


def noted(rank_dir: str) -> records.RankState:
    """Return the rank's ``state.json`` unchanged; empty if it is missing or truncated."""
    return cast(records.RankState, json_files.read_whole(_state_file(rank_dir)) or {})


def specification(rank_dir: str) -> records.RankSpec:
    """Return the rank's ``rank.json``; empty if it is missing or truncated."""
    path = os.path.join(rank_dir, rank_files.RANK_FILE)
    return cast(records.RankSpec, json_files.read_whole(path) or {})


def checkpoint_dir(spec: records.RankSpec) -> str:
    """Return the folder that a rank's script gets as TRAIN_CHECKPOINT_DIR."""
    in_results = os.path.join(spec["results_dir"], rank_files.CHECKPOINT_DIR)
    return spec["checkpoint_dir"] or in_results


def holds_file(folder: str) -> bool:
    """Return whether a folder or its subfolders contain any file."""
    return any(files for _, _, files in os.walk(folder))


def _state_file(rank_dir: str) -> str:
    return os.path.join(rank_dir, rank_files.STATE_FILE)


def set_aside(rank_dir: str) -> None:
    """Move the files of a rank's last attempt to ``attempts/<number>/``."""
    spec = specification(rank_dir)
    folder = os.path.join(rank_dir, rank_files.ATTEMPTS_DIR, str(spec.get("attempt", 0)))
    os.makedirs(folder, exist_ok=True)
    for name in _OF_ATTEMPT:
        path = os.path.join(rank_dir, name)
        if os.path.exists(path):
            os.replace(path, os.path.join(folder, name))


def put_back(rank_dir: str, attempt: int) -> None:
    """Undo ``set_aside`` for an ``attempt`` that was staged but not started.

    The rank's folder is restored to its state after the previous attempt. If there was no previous
    attempt in it, the folder is removed.
    """
    current = specification(rank_dir).get("attempt", attempt)
    if current != attempt or observe(rank_dir)["phase"] != records.ABSENT:
        return
    folders = os.path.join(rank_dir, rank_files.ATTEMPTS_DIR)
    earlier = [int(name) for name in processes.numbers(folders) if int(name) < attempt]
    if not earlier:
        import shutil  # slow to import

        shutil.rmtree(rank_dir, ignore_errors=True)
        return
    folder = os.path.join(folders, str(max(earlier)))
    for name in _OF_ATTEMPT:
        path = os.path.join(rank_dir, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with contextlib.suppress(FileNotFoundError):
            os.replace(os.path.join(folder, name), path)
    with contextlib.suppress(OSError):  # it contains other files
        os.rmdir(folder)
        os.rmdir(folders)


def _write_at_last(path: str, *arguments: Any) -> None:
    """Write a file like json_files.write_json; on a full disk, use the rank's reserved space."""
    try:
        json_files.write_json(path, *arguments)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(os.path.dirname(path), RESERVE_FILE))
        json_files.write_json(path, *arguments)


def write_state(rank_dir: str, state: records.RankState) -> None:
    """Write a rank's ``state.json``; errors are only printed, because the rank does not need it."""
    # The reserved space is for the end, because an active script would fill it again.
    write = _write_at_last if state["phase"] in records.FINAL_PHASES else json_files.write_json
    try:
        write(_state_file(rank_dir), state)
    except OSError as error:
        plain_text.note("cannot write %s: %s" % (rank_files.STATE_FILE, error))


def identify(rank_dir: str, spec: records.RankSpec) -> records.RankInfo:
    """Return the control node's record of a rank with this ``rank.json``."""
    place = (processes.machine(), os.readlink("/proc/self/ns/mnt"), "uid:%d" % os.getuid())
    return {
        "rank_dir": rank_dir,
        "host_python": sys.executable,
        "place": "/".join(place),
        "job": spec["job"],
        "task": spec["task"],
        "attempt": spec["attempt"],
        "results_dir": spec["results_dir"],
        "port": spec["port"],
        "non_training": spec["non_training"],
    }


def progress(rank_dir: str) -> List[progress_records.Progress]:
    """Return the last progress records of a rank."""
    text = tail.read_last(os.path.join(rank_dir, rank_files.PROGRESS_FILE), TAIL)
    return progress_records.parse_progress(text.decode(errors="replace"))


def orphaned(rank_dir: str, state: records.RankState) -> records.RankState:
    """Return the last state of a rank whose supervisor was killed or has failed."""
    cause, what = end_causes.SUPERVISOR, "was killed"
    log = tail.read_last(os.path.join(rank_dir, rank_files.SUPERVISOR_LOG_FILE), 4096)
    for line in log.decode(errors="replace").splitlines():
        if line.startswith(CRASHED):
            cause, what = end_causes.INTERNAL, "failed: " + line[len(CRASHED) :]
    reason = "ended with its supervisor (pid %s), which %s" % (state.get("supervisor_pid"), what)
    return {**state, "phase": records.FAILED, "cause": cause, "reason": reason}


class Known:
    """What functions have read that later ones, for other ranks of this machine, need as well."""

    def __init__(self) -> None:
        #: By root and job, or root and an empty string for all jobs; see _specifications.
        self.specifications: Dict[Tuple[str, str], List[Tuple[records.RankSpec, str]]] = {}
        #: The rank's folder in the environment of a process, by its pid and start.
        self.marks: Dict[Tuple[int, int], str] = {}
        #: Processes that do not belong to a rank and never will, by the rank's folder, with the
        #: time when the first of them were listed.
        self.strangers: Dict[str, Tuple[float, Set[int]]] = {}


def processes_of(rank_dir: str, known: Optional[Known] = None) -> Set[int]:
    """Return the processes that a rank's script has started.

    They are descendants of the supervisor or its watchdog, or have inherited the rank's
    environment, or belong to a session that the supervisor has noted.
    """
    known = known or Known()
    strangers = _strangers(rank_dir, known)
    running = processes.snapshot(without=strangers)
    state = noted(rank_dir)
    roots = [pid for pid, start in _supervision(state) if pid and processes.is_alive(pid, start)]
    sessions = _sessions(state)
    found, unknown = set(), set()
    for pid, process in running.items():
        mark = known.marks.get((pid, process.start))
        if mark is None:
            mark = processes.variable(pid, rank_environment.ENV_RANK_DIR)
        if mark is None:
            unknown.add(pid)
        else:
            known.marks[pid, process.start] = mark
        if mark == rank_dir or process.session in sessions:
            found.add(pid)
    found = (found | processes.descendants([*roots, *found], running)) - {*roots}
    # Not those whose parent has just ended, so that its parent is unknown.
    others = processes.descendants([0, 1, *strangers], running)
    strangers.update(others - found - unknown - {*roots})
    return found


def _strangers(rank_dir: str, known: Known) -> Set[int]:
    """Return the known strangers of a rank; only this process if they may have ended."""
    now = time.monotonic()
    since, strangers = known.strangers.get(rank_dir, (float("-inf"), set()))
    if now - since > _KNOWN_S:  # their numbers may be used again
        since, strangers = now, {os.getpid()}
    known.strangers[rank_dir] = since, strangers
    return strangers


def _sessions(state: records.RankState) -> Set[int]:
    """Return the sessions that a supervisor has noted, unless their numbers are used again."""
    if state.get("boot_id") != processes.boot_id():
        return set()
    found = set()
    for number, start in state.get("sessions", {}).items():
        with contextlib.suppress(OSError):  # another user's
            # The kernel does not reuse the number of a session while it has processes.
            if processes.start_time(int(number)) in (None, start):
                found.add(int(number))
    return found


def _supervision(state: records.RankState) -> List[Tuple[Optional[int], Optional[int]]]:
    supervisor = state.get("supervisor_pid"), state.get("supervisor_start")
    return [supervisor, (state.get("watchdog_pid"), state.get("watchdog_start"))]


def _end_all(rank_dir: str, known: Known) -> Tuple[Set[int], Set[int]]:
    """Kill (SIGKILL) all processes of a rank; return those found, and those that remain."""
    found: Set[int] = set()

    def have_ended() -> bool:
        left = processes_of(rank_dir, known)
        found.update(left)
        for pid in left:
            processes.send(pid, signal.SIGKILL)
        return not left

    ended = processes.wait_until(have_ended, processes.KILL_S)
    return found, set() if ended else processes_of(rank_dir, known)


def stop(
    rank_dir: str, grace: float, reason: str, known: Optional[Known] = None
) -> records.StopReport:
    """End every process of a rank and verify that.

    The supervisor sends SIGTERM and, after ``grace`` seconds, SIGKILL. Remaining processes,
    including supervisor and watchdog, are then killed from here.
    """
    known = known or Known()
    before, state, spec = observe(rank_dir), noted(rank_dir), specification(rank_dir)
    there = processes_of(rank_dir, known)
    had = {state.get("pid"), *there}
    was_alive = before["phase"] in records.ALIVE_PHASES
    supervisor, watchdog = _supervision(state)
    if was_alive:
        with contextlib.suppress(OSError):  # the grace of the job then applies
            # Only for a live supervisor, so it need not survive a power failure.
            request, durable = {"grace": grace, "reason": reason}, False
            _write_at_last(os.path.join(rank_dir, STOP_FILE), request, 0o600, durable)
        _end(*supervisor, signal.SIGTERM, grace + _LAST_STATE_S)
    # It ends by itself after it has ended the remaining processes of a killed supervisor.
    _end(*watchdog, 0, _LAST_STATE_S)
    left, remaining = _end_all(rank_dir, known)
    after = observe(rank_dir)
    is_new = state.get("phase") in records.ALIVE_PHASES and after["phase"] == records.FAILED
    if was_alive and after["phase"] != records.STOPPED:
        # The supervisor did not end in time; it wrote no last state.
        after = {**state, "phase": records.STOPPED, "cause": end_causes.STOPPED, "reason": reason}
        is_new = True
    if is_new:
        after.setdefault("ended_at", round(time.time(), 3))
        write_state(rank_dir, after)
    port, port_free, gpu_memory_free = state.get("port"), None, None
    leases.release_rank(spec)
    if was_alive or left:
        if port is not None:
            port_free = processes.wait_until(lambda: not ports.is_listening(port), _FREE_S)
        gpu_memory_free = _wait_for_gpus(spec, had)
    return {
        "was": before["phase"],
        "phase": after["phase"],
        "ended": len((there | left) - remaining),
        "remaining": sorted(remaining),
        "port": port,
        "port_free": port_free,
        "gpu_memory_free": gpu_memory_free,
        "given_back": 0,
    }


def _end(pid: Any, started: Any, signum: int, timeout: float) -> None:
    """Send a signal to a process, wait for its end, and kill it if that takes too long."""
    if processes.is_alive(pid, started):
        processes.send(pid, signum)
        # A stopped process only handles SIGKILL and SIGCONT.
        processes.send(pid, signal.SIGCONT)
    if not processes.wait_until(lambda: not processes.is_alive(pid, started), timeout):
        processes.send(pid, signal.SIGKILL)


def _wait_for_gpus(spec: records.RankSpec, pids: Set[Any]) -> Optional[bool]:
    names = spec["leases"]["resources"] if spec.get("leases") else {}
    uuids = [uuid for name in names if name.startswith("gpu/") for uuid in name.split("/")[1:]]
    if not uuids:
        return None
    from . import gpus  # slow to import, and every call on a host imports this module

    return gpus.wait_until_left(uuids, pids, _FREE_S)


def find(
    root: str,
    host: str,
    job: str = "",
    beside: Sequence[str] = (),
    names: Sequence[str] = (),
    known: Optional[Known] = None,
) -> List[str]:
    """Return the folders of the ranks that an inventory host answers for.

    The ranks belong to the last attempt of ``job``, or of the newest job. They are the host's own
    rank, and ranks that were started on this machine under names of another inventory. If several
    inventory hosts are this machine, each answers for a part of the latter.

    Args:
        beside: the inventory hosts that are reached in the same way as this one, including this
            one, in their order.
        names: all inventory hosts that are queried.
    """
    beside = list(beside) or [host]
    known = known or Known()
    if (root, job) not in known.specifications:
        known.specifications[root, job] = _specifications(root, job)
    specifications = known.specifications[root, job]
    if not job:
        mine = [spec for spec, _ in specifications if _answers(spec, host, beside, names)]
        of_host = [spec for spec in mine if spec.get("host") == host]
        chosen = (of_host or mine)[:1]
        specifications = [
            (spec, path)
            for spec, path in specifications
            if chosen and spec["job"] == chosen[0]["job"]
        ]
    newest = max((spec["attempt"] for spec, _ in specifications), default=0)
    last: Dict[Any, Tuple[int, str]] = {}
    for spec, path in specifications:
        last[spec.get("host")] = max(last.get(spec.get("host"), (0, "")), (spec["attempt"], path))
    own_dirs, others = [], []
    for spec, path in specifications:
        if last[spec.get("host")][1] != path or not _answers(spec, host, beside, names):
            continue
        if spec.get("host") == host:
            own_dirs.append(path)
        elif spec["attempt"] == newest or observe(path)["phase"] in records.ALIVE_PHASES:
            others.append(path)
    others.sort(key=lambda path: records.task_order(os.path.basename(path)))
    free = [name for name in beside if name not in last] or beside
    shared = others[free.index(host) :: len(free)] if host in free else []
    return own_dirs + shared


def _specifications(root: str, job: str) -> List[Tuple[records.RankSpec, str]]:
    """Return the ranks of a job, or of all jobs, with their folders, newest first."""
    pattern = os.path.join(
        glob.escape(root), "jobs", glob.escape(job) if job else "*", "*", rank_files.RANK_FILE
    )
    files = sorted(filter(os.path.isfile, glob.glob(pattern)), key=os.path.getmtime, reverse=True)
    found = [(specification(path), path) for path in map(os.path.dirname, files)]
    return [(spec, path) for spec, path in found if spec]


def _answers(
    spec: records.RankSpec, host: str, beside: Sequence[str], names: Sequence[str]
) -> bool:
    """Return whether an inventory host of this machine answers for a rank; see ``find``."""
    named, machine = spec.get("host"), spec.get("machine", "")
    if named == host or named in beside:
        return named == host
    if named in names:  # it is another machine, unless the names were swapped
        return machine == processes.machine()
    return processes.is_of_this_host(machine)


def in_job(job_dir: str) -> List[str]:
    """Return the rank folders of a job; none if it is gone, another user's, or not a folder."""
    files = glob.glob(os.path.join(glob.escape(job_dir), "*", rank_files.RANK_FILE))
    return sorted(os.path.dirname(path) for path in files if os.path.isfile(path))
