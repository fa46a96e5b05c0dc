"""A job that another command of this control node watches, followed by reading its files.

Two watches of a job would both write its files, and would both restart it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from train.cli import playbooks, suggesting, watch_lock
from train.cli.ansible_options import AnsibleOptions
from train.cli.job import Event, Followed, Result, event_of, result_of, with_kept
from train.cli.watch_lock import WatchedError
from train.gang import reports, suggestions
from train.gang.job_records import EVENTS_FILE, read_result
from train.host.records import ABSENT

#: Bytes to read at the end of the events, for the last one of each rank.
_TAIL = 1 << 20
#: Maximum bytes of events to read at a time.
_BLOCK = 1 << 20
#: Seconds for the watch to end after the job was stopped, and if it could not be stopped.
_END_LIMIT, _END_LIMIT_FAILED = 300.0, 30.0


class WatchedJob:
    """A job that another command watches.

    If that command ends before the job does, this one takes over.

    Args:
        name: the job's id.
        run_dir: its folder.
        watcher: the record of the command that watches it.
        options: the options that reach the hosts.
        variables: of the role and of Ansible; those saved at the job's start are added.
        attach: attaches to the job. Raises WatchedError if yet another command watches it.
    """

    def __init__(
        self,
        name: str,
        run_dir: Path,
        watcher: Mapping[str, Any],
        options: AnsibleOptions,
        variables: Mapping[str, Any],
        attach: Callable[[], Followed],
    ) -> None:
        self.name, self.run_dir = name, run_dir
        self.result: Result | None = None
        self._watcher, self._attach = dict(watcher), attach
        self._options = options
        self._variables = with_kept(name, {**variables, "train_job_runs_dir": str(run_dir.parent)})
        self._path = run_dir / EVENTS_FILE
        self._offset = -1  # nothing was read yet
        self._taken: Followed | None = None  # followed by this command
        self._stop: playbooks.Playbook | None = None
        self._stop_errors: list[str] = []
        self._end_by = float("inf")

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield the new events, after waiting for up to ``timeout`` seconds."""
        if self._taken is not None:
            yield from self._taken.events(timeout)
            self.result = self._taken.result
            return
        if self._offset < 0:
            text = f"{watch_lock.described(self._watcher)} watches the job, and this command shows "
            yield self._notice("watched", f"{text}what it reports")
            yield from self._last_events()
        elif self.result is None:
            time.sleep(timeout)
        is_over = self._is_over()  # before the last events are read
        yield from self._new_events()
        if self.result is None:
            yield from self._follow_stop()
        if self.result is None and is_over:
            yield from self._end()

    def _notice(self, kind: str, text: str) -> Event:
        return Event("notice", self.name, "", {"kind": kind, "task": None, "text": text})

    def _last_events(self) -> Iterator[Event]:
        """Yield the last event of each rank of the current attempt."""
        last: dict[str, Event] = {}
        try:
            self._offset = max(0, self._path.stat().st_size - _TAIL)
        except FileNotFoundError:
            self._offset = 0
        is_cut = self._offset > 0
        for event in self._new_events():
            if event.kind == "restart":
                last.clear()
            elif event.kind == "rank" and not is_cut:
                last[event.task] = event
            is_cut = False
        yield from last.values()

    def _new_events(self) -> Iterator[Event]:
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                while lines := stream.readlines(_BLOCK):
                    for line in lines:
                        if not line.endswith(b"\n"):
                            return  # incomplete line
                        self._offset += len(line)
                        if event := event_of(self.name, line):
                            yield event
        except FileNotFoundError:
            return

    def _is_over(self) -> bool:
        """Return whether the other command does not watch the job anymore."""
        watcher = watch_lock.watcher_of(self.run_dir)
        self._watcher = watcher or self._watcher
        return watcher is None

    def _end(self) -> Iterator[Event]:
        """Set the result if the job has ended; otherwise, take over."""
        try:
            ended = read_result(self.run_dir)
        except (OSError, ValueError):
            ended = None
        if ended is not None and not ended.get("restart"):
            self.result = result_of(ended, self.run_dir)
            return
        try:
            self._taken = self._attach()
        except WatchedError as error:  # another command was faster
            self._watcher = error.watcher
            return
        who = watch_lock.described(self._watcher)
        yield self._notice("watched", f"{who} has ended: this command watches the job now")

    def _follow_stop(self) -> Iterator[Event]:
        """Yield the errors of a stop, and give up if the watch does not end in time after it."""
        if self._stop is not None and self._stop.wait(0.0):
            outcome, self._stop = self._stop.close(), None
            self._stop_errors = _errors(outcome)
            for line in self._stop_errors:
                yield self._notice("stop", f"could not stop the job: {line}")
            limit = _END_LIMIT_FAILED if self._stop_errors else _END_LIMIT
            self._end_by = time.monotonic() + limit
        if time.monotonic() > self._end_by:
            message = "the job was stopped, but its end was not reported in time"
            if self._stop_errors:
                message = f"could not stop the job: {'; '.join(self._stop_errors)}"
            self.result = self._result("unwatched", message)

    def leave(self) -> Result:
        """Stop following; the other command continues to watch the job."""
        if self._taken is not None:
            self.result = self._taken.leave()
            return self.result
        if self._stop is not None:
            self._stop.close()
        attach, stop = (self._command(name) for name in ("attach", "stop"))
        who = watch_lock.described(self._watcher)
        text = f"the job continues, and {who} watches it: attach to it with `{attach}`, or stop it "
        self.result = self._result("left", f"{text}with `{stop}`")
        return self.result

    def request_stop(self) -> None:
        """Begin to stop the job on every host; the other command then reports its end."""
        if self._taken is not None:
            self._taken.request_stop()
        elif self._stop is None:
            self._stop = playbooks.Playbook("stop.yml", self._options, self._variables)

    def close(self) -> None:
        """Let other commands watch the job, if this one does."""
        if self._taken is not None:
            self._taken.close()

    def _command(self, name: str) -> str:
        call = suggesting.call_of(self._options, self._variables)
        return suggestions.command(name, call, job=self.name)

    def _result(self, state: str, message: str) -> Result:
        return Result(self.name, state, message, {}, [], self.run_dir)


def _errors(outcome: playbooks.PlaybookOutcome) -> list[str]:
    """Return why a stop playbook has not stopped the job; empty if it has."""
    if outcome.messages:
        return outcome.messages
    try:
        stopped = [
            report
            for answer in outcome.answers("gang_stop").values()
            for report in reports.stop_reports(answer)
        ]
    except reports.ReportError as error:
        return [f"a malformed report: {error}"]
    if any(report["was"] != ABSENT or report["given_back"] for report in stopped):
        return []
    return ["no host has a rank of it"]
