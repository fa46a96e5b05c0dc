"""The rank supervisor: runs one rank's script and keeps its ``state.json`` up to date.

    python3 -S -E RANK_DIR/launcher/programs.zip train.host.supervisor RANK_DIR [RANK_DIR ...]

It enforces the deadlines, and ends the script (SIGTERM, grace period, SIGKILL) with all of its
descendants, whose subreaper it is. If the supervisor is killed or fails, its parent, the watchdog,
inherits and ends them.

The command starts a supervisor for each rank of a machine, in a separate session, all with the
programs in the first rank's folder. It returns as soon as all of them have noted their starts, and
prints the folders of those that failed, with the reasons, as a JSON object. The exit code is then
1, otherwise 0.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Set, Tuple, cast

from . import (
    console,
    contacts,
    end_causes,
    ends,
    framework_environment,
    frameworks,
    gpus,
    json_files,
    leases,
    leftovers,
    life,
    limited,
    lingering,
    loop_bars,
    metadata,
    offspring,
    outputs,
    pace,
    plain_text,
    ports,
    preemption,
    processes,
    progress_records,
    rank_environment,
    rank_files,
    ranks,
    records,
    tail,
    temporary,
)
from .masking import Mask

#: Seconds between two iterations of the supervisor; the rank's end and signals are noticed at once.
TICK = 0.5
#: Seconds by which an iteration of the watch is late if the machine was suspended.
_SUSPENDED = 5.0
_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
#: Seconds that a hanging rank has to write its stacks.
_DUMP = 5.0
#: The share of a machine's memory above which a rank counts as killed for its own usage.
_LARGE = 0.05
#: Bytes of ranks.RESERVE_FILE.
_RESERVE = 65_536
#: Size in bytes at which the supervisor's own log is emptied.
_LOG_LIMIT = 1_048_576
#: Maximum length of the reason why a supervisor failed, in characters.
_PROBLEM = 2000
#: Seconds of steps without a contact before that is reported.
_ALONE = 10.0
#: A variable in an argument.
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>TRAIN_[A-Z_]+)\}|(?P<plain>TRAIN_[A-Z0-9_a-z]+))")
#: Minimum seconds after the last step before a script that does not exit is reported.
_LINGERING = 5.0
#: Seconds from the start to the first listing of the script's descendants, and the maximum between
#: two listings.
_FIRST_LISTING, _BETWEEN_LISTINGS = 2.0, 10.0
#: Seconds for a metadata server to answer when a host may be shut down.
_ASK_S = 1.0
#: Number of activity checks within the limit of a rank that has not started.
_CHECKS = 20
#: Bytes to keep of the stacks of a hanging rank, and to read of a log.
_STACKS, _LAST_LINES = 4_194_304, 65_536
#: Phase, cause and reason of the end of a rank.
_Outcome = Tuple[str, Optional[str], str]


class Supervisor:
    """Runs the rank in a folder that contains ``rank.json`` and the staged code."""

    def __init__(self, rank_dir: str) -> None:
        self.rank_dir = rank_dir
        found = json_files.read_json(self._path(rank_files.RANK_FILE))
        if found is None:
            raise SystemExit("%s: the file %s does not exist" % (rank_dir, rank_files.RANK_FILE))
        self.spec = spec = cast(records.RankSpec, found)
        self.state: records.RankState = {
            "version": records.FORMAT_VERSION,
            "job": spec["job"],
            "task": spec["task"],
            "attempt": spec["attempt"],
            "port": spec["port"],
            "phase": records.STARTING,
            "boot_id": processes.boot_id(),
            "init_start": processes.init_start(),
            "started_at": round(time.time(), 3),
        }
        tf_config = json_files.read_json(self._path(rank_files.TF_CONFIG_FILE))
        self._console = console.ConsoleParser(console.may_sum_replicas(tf_config, spec["gpus"]))
        self._leases = leases.Held(spec)
        self._pace = pace.Pace(spec["hang_factor"], spec["hang_min_seconds"])
        self._log = tail.Tail(self._path(rank_files.LOG_FILE))
        self._progress = tail.Tail(self._path(rank_files.PROGRESS_FILE))
        limit = spec["log_limit"]
        self._limited = {
            "log": (limited.LimitedFile(self._path(rank_files.LOG_FILE), limit), self._log),
            "progress": (
                limited.LimitedFile(self._path(rank_files.PROGRESS_FILE), limit),
                self._progress,
            ),
        }
        self._notes: Set[str] = set()
        self._writer = progress_records.ProgressWriter(self._path(rank_files.PROGRESS_FILE))
        self._console_bytes = 0
        self._sessions_due = 0.0
        self._offspring: offspring.Offspring  # of the process that runs the rank
        self._descendants: List[int] = []  # as last listed
        self._makes_steps = False
        self._first_place: Optional[Tuple[Any, ...]] = None  # step, batch and epoch
        self._log_size, self._printed_at = -1, 0.0
        trains = not spec["non_training"]
        communicates = trains and spec["framework"] != frameworks.NONE
        self._contacts = contacts.Contacts(
            spec["port"] if communicates else None, tf_config or {}, spec["framework"]
        )
        #: Whether the rank has started once it is connected to the first one, which listens.
        self._connects = spec["framework"] in frameworks.WITH_ONE_LISTENER
        self._life = life.Life(time.monotonic())
        self._life_due = time.monotonic() + spec["start_idle_timeout"] / _CHECKS
        self._killed_before = ends.memory_kills()
        self._asking = metadata.Asking(spec.get("preemption", metadata.OFF))
        self._leave_at = float("inf")  # when the rank is ended after a notice of preemption

    def run(self, started: Callable[[], None]) -> None:
        """Run the rank to its end; ``started`` is called once the state is on the disk."""
        processes.adopt()
        self.state["supervisor_pid"], self.state["watchdog_pid"] = os.getpid(), os.getppid()
        self.state["supervisor_start"] = processes.start_time(os.getpid())
        self.state["watchdog_start"] = processes.start_time(os.getppid())
        with open(self._path(ranks.RESERVE_FILE), "wb") as stream:
            stream.write(bytes(_RESERVE))
        self._save()
        started()
        if os.path.exists(
            os.path.join(os.path.dirname(self.rank_dir), rank_files.STOP_REQUEST_FILE)
        ):
            self._finish((records.STOPPED, end_causes.STOPPED, "was stopped before it started"))
            return
        try:
            self._leases.confirm()
            self._offspring = offspring.Offspring()
            worker = self._start()
        except leases.HeldError as error:
            self._finish((records.FAILED, end_causes.BUSY, "was not started: %s" % error))
        except OSError as error:
            self._finish((records.FAILED, end_causes.UNSTARTABLE, "cannot be started: %s" % error))
        else:
            self.state["pid"] = worker.pid
            self.state["pid_start"] = processes.start_time(worker.pid)
            self.state["sessions"] = {str(worker.pid): self.state["pid_start"]}
            self._save()
            self._watch(worker)

    def _path(self, name: str) -> str:
        return os.path.join(self.rank_dir, name)

    def _save(self) -> None:
        ranks.write_state(self.rank_dir, self.state)

    def _environment(self, temporary_dir: str) -> Dict[str, str]:
        # Variables of Ansible's login shell are not for the script.
        dropped = ("ANSIBLE_ASYNC_DIR", "PYTHONPATH", "PYTHONHOME")
        environment = {name: v for name, v in os.environ.items() if name not in dropped}
        tf_config = json_files.read_json(self._path(rank_files.TF_CONFIG_FILE))
        results = self.spec["results_dir"]
        environment.update(
            {
                **self.spec["rank_environment"],
                "PYTHONUNBUFFERED": "1",
                rank_environment.ENV_JOB: self.spec["job"],
                rank_environment.ENV_RANK_DIR: self.rank_dir,
                rank_environment.ENV_PROGRESS: self._path(rank_files.PROGRESS_FILE),
                rank_environment.ENV_MODEL_DIR: os.path.join(results, rank_files.MODEL_DIR),
                rank_environment.ENV_CHECKPOINT_DIR: ranks.checkpoint_dir(self.spec),
                rank_environment.ENV_CHECKPOINT_COPY: "1" if self.spec["checkpoint_copy"] else "0",
                rank_environment.ENV_TENSORBOARD_DIR: os.path.join(
                    results, rank_files.TENSORBOARD_DIR
                ),
                rank_environment.ENV_SEED: str(self.spec["seed"]),
                rank_environment.ENV_START_TIMEOUT: str(
                    self.spec["start_timeout"] or self.spec["start_wait_timeout"]
                ),
                rank_environment.ENV_ATTEMPT: str(self.spec["attempt"]),
            }
        )
        if temporary_dir:
            environment.setdefault("TMPDIR", temporary_dir)
        # A fatal signal then writes the stacks of all threads to the log.
        environment.setdefault("PYTHONFAULTHANDLER", "1")
        if glibc() >= (2, 35):
            environment.setdefault(rank_environment.ENV_MALLOC, rank_environment.MALLOC_OPTIONS)
        visible = self.spec["visible_gpus"]
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible) or "-1"
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of the driver's indices
        framework_environment.add(environment, self.spec, tf_config or {})
        environment.update(self.spec["environment"])
        return environment

    def _start(self) -> subprocess.Popen[bytes]:
        end_with_parent = processes.ending_with_parent(signal.SIGKILL)

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)
            # Batch systems send this notice of preemption to all processes.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            end_with_parent()

        self.state["checkpoint_found"] = ranks.holds_file(ranks.checkpoint_dir(self.spec))
        environment = self._environment(temporary.create(self.rank_dir))
        # Not through the link to the current environment, which may change before the job ends.
        folder, name = os.path.split(self.spec["python"])
        python = os.path.join(os.path.realpath(folder), name)
        wrapper = []
        if self.spec["framework"] == frameworks.JAX:
            folder = os.path.join(self.rank_dir, rank_files.LAUNCHER_DIR)
            wrapper = [os.path.join(folder, rank_files.FAIL_AT_ONCE_FILE)]
        with open(self._path(rank_files.LOG_FILE), "ab") as log:
            return subprocess.Popen(
                [python, *wrapper, *(expand(word, environment) for word in self.spec["argv"])],
                cwd=os.path.join(self.rank_dir, rank_files.CODE_DIR),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def _watch(self, worker: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        self._asking.start()
        outcome: Optional[_Outcome] = None  # set if the supervisor has decided to end the rank
        kill_at = float("inf")
        dump_from: Optional[int] = None
        waited_at = began
        while worker.returncode is None:
            woken = _wait(worker)
            now = time.monotonic()
            # While the machine or its processes are suspended, this clock continues.
            lost = now - waited_at - TICK
            if lost > _SUSPENDED:
                self._postpone(lost)
                began += lost
            waited_at = now
            self._read_console()
            self._read_progress(now)
            self._limit_files()
            self._note_running()
            self._leases.renew()
            self._note_sessions(now, now - began)
            self._note_contacts(worker.pid, now)
            self._note_lingering(worker.pid, now)
            self._note_preemption(woken == signal.SIGUSR1, now)
            _bound_log()
            if outcome is None:
                outcome = self._limit(now - began, now)
                grace = self.spec["grace"]
                if woken is not None and woken != signal.SIGUSR1:
                    outcome, grace = self._request(woken)
                elif outcome is None and now >= self._leave_at:
                    outcome, grace = self._leave()
                if outcome is not None and outcome[1] in (end_causes.HUNG, end_causes.LINGERED):
                    dump_from, kill_at = self._log.size(), now + _DUMP
                    _ask_for_stacks(worker.pid)
                elif outcome is not None:
                    processes.send(worker.pid, signal.SIGTERM, group=True)
                    # A stopped process only handles SIGKILL and SIGCONT.
                    processes.send(worker.pid, signal.SIGCONT, group=True)
                    kill_at = now + grace
            if now >= kill_at:
                processes.send(worker.pid, signal.SIGKILL, group=True)
        if outcome is None and worker.returncode == 0:
            self._note_left_at_work(worker)
            self._note_left_files()
        # Children may have outlived the script, even in their own sessions.
        left = processes.end_descendants()
        if left:
            plain_text.note("processes %s of the script could not be killed" % left)
        self._read_console()
        self._read_progress(time.monotonic())
        self._limit_files()
        if dump_from is not None and outcome is not None:
            reason = outcome[2] + self._keep_stacks(dump_from)
            outcome = (*outcome[:2], reason)
        self._finish(outcome or self._own_end(worker.returncode), worker.returncode)

    def _postpone(self, seconds: float) -> None:
        """Leave out some seconds from all durations after which a rank is ended or reported."""
        self._pace.postpone(seconds)
        self._life.postpone(seconds)
        self._printed_at += seconds

    def _own_end(self, returncode: int) -> _Outcome:
        of_group, of_host = (n - m for n, m in zip(ends.memory_kills(), self._killed_before))
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        # The kernel kills the largest process, which a small rank is not.
        large = peak_mb * 2**20 > _LARGE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        kills = (of_group, of_host if large else 0)
        log = self._log.read_last(_LAST_LINES).decode(errors="replace")
        full = self.rank_dir if ends.disk_full(self.rank_dir) else ""
        has_gpus = self.spec["gpus"] != [] and bool(gpus.device_nodes())
        cause, reason = ends.explain(returncode, log, kills, peak_mb, full, has_gpus)
        return records.FAILED if cause else records.COMPLETED, cause, reason

    def _request(self, signum: int) -> Tuple[_Outcome, float]:
        """Return the outcome and the grace period in seconds of a stop request, sent as a signal.

        A host that is shut down sends such a signal to all processes.
        """
        request: Dict[str, Any] = {}
        with contextlib.suppress(OSError):
            request = json_files.read_whole(self._path(ranks.STOP_FILE)) or {}
        reason, grace = request.get("reason"), request.get("grace")
        if not isinstance(reason, str):
            seconds = self._asking.ask_now(_ASK_S)
            if seconds is not None:
                self._note_notice(preemption.notice(self._asking.source, seconds))
            if "preemption" in self.state:
                return self._leave()
            reason = "its supervisor received %s" % signal.Signals(signum).name
        grace = grace if isinstance(grace, (int, float)) else self.spec["grace"]
        return (records.STOPPED, end_causes.STOPPED, reason), grace

    def _leave(self) -> Tuple[_Outcome, float]:
        """Return the outcome and the grace period in seconds of a rank whose host is preempted."""
        left = preemption.seconds_left(self.state["preemption"], time.time())
        reason = "was stopped because its host will be reclaimed"
        outcome = records.STOPPED, end_causes.PREEMPTED, reason
        return outcome, self.spec["grace"] if left is None else left

    def _keep_stacks(self, offset: int) -> str:
        """Store the stacks in the rank's log after ``offset``, and return where it was stuck.

        The result is text to append to the reason.
        """
        text = self._log.read_last(_STACKS, offset)
        place, in_framework = pace.stuck_in(text.decode(errors="replace"))
        self.state["stuck_in_framework"] = in_framework
        try:
            # The script may have replaced the file by anything, so do not wait.
            how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
            with open(os.open(self._path(rank_files.STACKS_FILE), how, 0o644), "wb") as kept:
                kept.write(text)
        except OSError as error:
            plain_text.note("cannot write %s: %s" % (rank_files.STACKS_FILE, error))
        if not place:
            return "; its stacks could not be recorded"
        return "; its main thread was at %s (all stacks: %s)" % (place, rank_files.STACKS_FILE)

    def _limit(self, elapsed: float, now: float) -> Optional[_Outcome]:
        reason = self._late(elapsed, now) if self.state["phase"] == records.STARTING else ""
        if reason:
            return records.FAILED, end_causes.START_TIMEOUT, reason
        limit = self.spec["max_runtime"]
        if limit and elapsed > limit:
            reason = "ran longer than %s s (train_job_max_runtime)" % limit
            return records.FAILED, end_causes.MAX_RUNTIME, reason
        allowed, finished = self.spec.get("exit_timeout", 0.0), self._finished_for(now)
        if allowed and finished > allowed:
            # It has completed its work.
            reason = "made its last step %.0f s ago and did not exit (train_job_exit_timeout)"
            return records.COMPLETED, end_causes.LINGERED, reason % finished
        reason = self._pace.overdue(now)
        if not reason:
            return None
        if ends.can_write(self.rank_dir):
            return records.FAILED, end_causes.HUNG, reason + " (train_job_hang_factor)"
        # Its records are lost, so it may be making steps if it is active.
        self._life.add(now, life.sample(os.getpid(), 0))
        if self._life.idle(now) < self.spec["hang_min_seconds"]:
            self._note_once("steps cannot be seen, because %s cannot be written" % self.rank_dir)
            self._pace.postpone(self.spec["hang_min_seconds"])
            return None
        reason = "%s; the disk that holds %s is full" % (reason, self.rank_dir)
        return records.FAILED, end_causes.DISK, reason

    def _late(self, elapsed: float, now: float) -> str:
        """Return a reason if the rank has taken too long to start, or an empty string.

        An active rank is ended only at a limit that the user has set.
        """
        start, timeout = "open port %s" % self.spec["port"], self.spec["start_timeout"]
        if self._connects and self.spec["rank_environment"][rank_environment.ENV_RANK] != "0":
            start = "connect to the first rank"
        if timeout:
            reason = "did not %s within %s s (train_job_start_timeout)"
            return reason % (start, timeout) if elapsed > timeout else ""
        idle = self.spec["start_idle_timeout"]
        if now >= self._life_due:
            self._life_due = now + idle / _CHECKS
            written = self._log.size() + (tail.size(self._path(rank_files.PROGRESS_FILE)) or 0)
            self._life.add(now, life.sample(os.getpid(), written))
        if self._life.idle(now) <= idle:
            return ""
        reason = "did not %s, and for %s s used no CPU time, read no data and wrote no output"
        return reason % (start, idle) + " (train_job_start_idle_timeout)"

    def _note_running(self) -> None:
        if self.state["phase"] != records.STARTING:
            return
        port = self.spec["port"]
        # A script that makes steps has started, with or without a port.
        steps = self._console_bytes or self._pace.step is not None
        joined = self._contacts.has_contact or self.spec["framework"] == frameworks.NONE
        if port is None or steps or joined or ports.is_listening(port):
            self.state["phase"] = records.RUNNING
            self.state["running_at"] = round(time.time(), 3)
            self._save()

    def _note_sessions(self, now: float, elapsed: float) -> None:
        """Store the sessions of all descendants of the script, for ranks.processes_of."""
        if elapsed < _FIRST_LISTING or now < self._sessions_due:
            return
        self._sessions_due = now + min(_BETWEEN_LISTINGS, elapsed)
        found = self._offspring.by_session()
        self._descendants = [pid for pids in found.values() for pid in pids]
        sessions = {str(session): processes.start_time(session) for session in found}
        if sessions != self.state.get("sessions"):
            self.state["sessions"] = sessions
            self._save()

    def _note_left_at_work(self, worker: subprocess.Popen[bytes]) -> None:
        """Store the processes that are still active although the script has ended."""
        progress = self._path(rank_files.PROGRESS_FILE)
        size = tail.size(progress)
        command = [os.fsdecode(word) for word in cast(Any, worker.args)]
        found = leftovers.at_work(command, worker.pid, lambda: tail.size(progress) != size)
        if found:
            mask = Mask([self.spec["environment"]])
            self.state["at_work"] = [mask.text(one) for one in found]

    def _note_left_files(self) -> None:
        """Store files in the working directory that look like results."""
        folder = os.path.join(self.rank_dir, rank_files.CODE_DIR)
        fetched = self.spec.get("collect", [])
        count, size, names = outputs.left_behind(folder, self.state["started_at"], fetched)
        if count:
            self.state["left_files"] = {"count": count, "bytes": size, "names": names}

    def _finished_for(self, now: float) -> float:
        """Return the seconds since the last output or progress record after the rank's final step.

        Return 0 if more steps are to come.
        """
        size = self._log.size()
        if size != self._log_size:
            self._log_size, self._printed_at = size, now
        return min(self._pace.finished_for(now), now - self._printed_at)

    def _note_lingering(self, pid: int, now: float) -> None:
        """Store the threads and children of a script that does not exit after its last step."""
        seconds = self._finished_for(now)
        is_lingering = seconds > max(_LINGERING, self.spec["hang_min_seconds"])
        if is_lingering == ("lingering" in self.state):
            return
        if is_lingering:
            mask = Mask([self.spec["environment"]])
            self.state["lingering"] = [mask.text(text) for text in lingering.describe(pid)]
            self.state["lingering_s"] = round(seconds, 1)
        else:
            del self.state["lingering"], self.state["lingering_s"]
        self._save()

    def _note_preemption(self, signaled: bool, now: float) -> None:
        """Store the first notice that this host will be reclaimed.

        The control node then ends the whole gang. Without it, the rank ends by itself.
        """
        last = self._asking.last
        if last.at_risk and not self.state.get("at_risk"):
            self.state["at_risk"] = True
            self._save()
        found = preemption.from_file(self.rank_dir)
        if last.seconds is not None:
            found = preemption.notice(self._asking.source, last.seconds)
        elif found is None and signaled:
            found = preemption.notice(preemption.SIGNAL)
        if found is not None:
            self._note_notice(found)
            self._leave_at = min(self._leave_at, now + preemption.patience(found))

    def _note_notice(self, found: records.Preemption) -> None:
        if "preemption" not in self.state:
            self.state["preemption"] = found
            plain_text.note("this host will be reclaimed: %s" % found)
            self._save()

    def _note_contacts(self, pid: int, now: float) -> None:
        """Store whether the rank makes steps without contact with the others of its gang."""
        steps = self._makes_steps
        if self.state["phase"] == records.STARTING and not (steps or self._connects):
            return
        if self._contacts.due(now, steps):
            self._contacts.observe({pid, *self._descendants}, self._offspring.pids, now, steps)
        alone = self._contacts.seconds_alone(now) > _ALONE
        if alone != self.state.get("alone", False):
            self.state["alone"] = alone
            self._save()

    def _read_console(self) -> None:
        """Convert Keras output in the log to progress records, unless the script writes its own."""
        progress = self._path(rank_files.PROGRESS_FILE)
        if tail.size(progress) not in (0, self._console_bytes):
            return
        parsed = self._console.feed(self._log.read())
        if parsed:
            # Of each phase and epoch, the last records with and without values are enough.
            groups = itertools.groupby(
                parsed,
                lambda r: (r.get("phase"), r.get("epoch"), "loss" in r or "metrics" in r),
            )
            for _, group in groups:
                self._writer.write(force=True, **list(group)[-1])
            self._console_bytes = tail.size(progress) or 0

    def _read_progress(self, now: float) -> None:
        """Measure the pace from new progress records, of the script or from its console output."""
        lines = self._progress.read_lines()
        if lines:
            found = progress_records.parse_progress(lines.decode(errors="replace"))
            self._pace.feed(found, now)
            for record in found:
                place = record.get("step"), record.get("batch"), record.get("epoch")
                if any(place) and not loop_bars.is_vague(record):
                    # A single record may show activity without training.
                    self._makes_steps |= self._first_place not in (None, place)
                    self._first_place = self._first_place or place

    def _limit_files(self) -> None:
        """Free excess space of the rank's files while the script continues to write."""
        for name, (file, reader) in self._limited.items():
            hole = file.wanted()
            # Stored first, so that readers skip the range that is removed.
            self._note_hole(name, hole)
            if hole is None or hole == file.hole:
                continue
            try:
                file.free(hole)
                reader.skip_to(hole[1])
                self._note_once(
                    "only the beginning and the newest part of %s are kept, because the file "
                    "exceeded its limit (train_job_host_log_limit_mb)" % os.path.basename(file.path)
                )
            except OSError as error:
                self._note_once("%s cannot be kept within its limit: %s" % (file.path, error))
            self._note_hole(name, file.hole)

    def _note_hole(self, name: str, hole: Optional[limited.Hole]) -> None:
        before = self.state.get("left_out", {})
        holes = {other: known for other, known in before.items() if other != name}
        if hole is not None:
            holes[name] = list(hole)
        if holes != before:
            self.state["left_out"] = holes
            self._save()

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            plain_text.note(text)

    def _finish(self, outcome: _Outcome, returncode: Optional[int] = None) -> None:
        self.state["phase"], self.state["cause"], reason = outcome
        self.state["reason"] = Mask([self.spec["environment"]]).text(reason)
        self.state["exit_code"] = returncode
        self.state["step"] = self._pace.step
        seconds = self._contacts.seconds_alone(time.monotonic())
        self.state["alone"] = seconds > 0 or self._contacts.ended_without_any()
        self.state["ended_at"] = round(time.time(), 3)
        self._leases.release()
        self._save()


def expand(word: str, environment: Dict[str, str]) -> str:
    """Return an argument with only the launcher's variables expanded."""

    def value(found: "re.Match[str]") -> str:
        name = found["braced"] or found["plain"]
        return environment[name] if name in rank_environment.OWN_VARIABLES else found[0]

    return _VARIABLE.sub(value, word)


def glibc() -> Tuple[int, ...]:
    """Return the version of this host's glibc, such as (2, 36); (0,) with another C library."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):  # musl does not know this name
        return (0,)
    return tuple(map(int, version.split("."))) if name == "glibc" else (0,)


def _ask_for_stacks(pid: int) -> None:
    """Make a Python process write the stacks of all threads to its log, and end."""
    with contextlib.suppress(OSError):  # it has ended
        # Without a core dump, which may be large.
        limit = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, limit[1]))
        processes.send(pid, signal.SIGABRT)
        processes.send(pid, signal.SIGCONT)


def _wait(worker: subprocess.Popen[bytes]) -> Optional[int]:
    """Wait up to TICK seconds for the script's end or a signal; return the signal, if any."""
    until = time.monotonic() + TICK
    while True:
        woken = signal.sigtimedwait(_WAKING, max(0.0, until - time.monotonic()))
        status = processes.reap().get(worker.pid)
        if status is not None:
            killed = os.WIFSIGNALED(status)
            worker.returncode = -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        if woken is not None and woken.si_signo != signal.SIGCHLD:
            return woken.si_signo
        if woken is None or worker.returncode is not None:
            return None


def _bound_log() -> None:
    """Empty the supervisor's own log if it has become too large."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > _LOG_LIMIT:
            os.ftruncate(2, 0)
            plain_text.note("this log became too large and was emptied")


def _supervise(supervisor: Supervisor, started: Callable[[], None]) -> None:
    """Run the supervisor, and then end its process."""
    code = 1
    try:
        os.setsid()  # a signal to the watchdog's group must not reach the supervisor
        supervisor.run(started)
        code = 0
    except BaseException as error:
        import traceback  # slow to import

        traceback.print_exc()
        text = traceback.format_exception_only(type(error), error)[-1].strip()
        plain_text.note(ranks.CRASHED + text[:300])
        processes.end_descendants()
    finally:
        os._exit(code)


def _watch_over(supervisor: Supervisor, pid: int) -> None:
    """Run the watchdog: wait for the supervisor's end, then end the rank and store its state."""
    while os.wait()[0] != pid:
        pass
    processes.end_descendants()
    rank_dir = supervisor.rank_dir
    temporary.remove(rank_dir)
    path = os.path.join(rank_dir, rank_files.STATE_FILE)
    # A stop command notes the end itself. Without a state, the rank did not start, which the
    # caller reports.
    if os.path.exists(os.path.join(rank_dir, ranks.STOP_FILE)) or not os.path.exists(path):
        return
    state = ranks.noted(rank_dir) or {**supervisor.state, "supervisor_pid": pid}
    if state["phase"] in records.ALIVE_PHASES:
        last = ranks.orphaned(rank_dir, state)
        ranks.write_state(rank_dir, {**last, "ended_at": round(time.time(), 3), "exit_code": None})


def start(rank_dir: str, reader: int, writer: int) -> None:
    """Start the watchdog and supervisor of a rank in the background.

    They close ``writer``, the end of a pipe, when the rank's state is on the disk, or when they
    have failed. Raise OSError if the rank's folder cannot be used or no process can be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(os.path.join(rank_dir, rank_files.SUPERVISOR_LOG_FILE), flags, 0o644)
    try:
        if os.fork() == 0:
            os.close(reader)
            _run_in_background(rank_dir, log, writer)
    finally:
        os.close(log)


def _run_in_background(rank_dir: str, log: int, writer: int) -> NoReturn:
    """Run the watchdog and, as its child, the supervisor of a rank. Never returns."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        processes.adopt()
        supervisor = Supervisor(rank_dir)
        pid = os.fork()
        if pid == 0:
            _supervise(supervisor, lambda: os.close(writer))
        os.close(writer)
        _watch_over(supervisor, pid)
    except SystemExit as error:
        plain_text.note(str(error))
    except BaseException:
        import traceback  # slow to import

        plain_text.note(traceback.format_exc())
    finally:
        os._exit(0)  # the state shows whether the rank has started


def _problem(rank_dir: str) -> str:
    """Return why a supervisor that was started does not work, or an empty string."""
    if os.path.exists(os.path.join(rank_dir, rank_files.STATE_FILE)):
        return ""
    path = os.path.join(rank_dir, rank_files.SUPERVISOR_LOG_FILE)
    text = ""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        text = stream.read().strip()
    return text[-_PROBLEM:] or "the supervisor exited immediately"


def main(rank_dirs: Sequence[str]) -> int:
    """Start the supervisors of ranks in the background; print those that failed as JSON."""
    problems = {}
    reader, writer = os.pipe()
    for rank_dir in rank_dirs:
        try:
            start(rank_dir, reader, writer)
        except OSError as error:
            problems[rank_dir] = str(error)
    os.close(writer)
    os.read(reader, 1)  # returns when all have closed the other end, explicitly or at exit
    for rank_dir in rank_dirs:
        problem = problems.get(rank_dir) or _problem(rank_dir)
        if problem:
            problems[rank_dir] = problem
    print(json.dumps(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main([os.path.abspath(rank_dir) for rank_dir in sys.argv[1:]]))
