"""Sends the requests of a watch to the hosts of its ranks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from train.gang import connections
from train.gang.host_session import HostSession, SessionError
from train.gang.watch.diagnosis import Peers
from train.gang.watch.views import Target
from train.host import rank_files, updates

#: Seconds for a host to connect to all ranks.
PROBE_TIMEOUT = 3.0
#: How often in a row the program that returns updates may fail before only commands are used.
_TRIES = 3


class RankHosts:
    """The hosts of ranks, reached over connections of the play.

    For updates, a program stays on each machine if the connection allows it. If it does not answer,
    the request is sent again with a command. After a command has worked, the program is started
    again, but no more than _TRIES times if it never answers. A login that fails raises
    UnreachableError at once.
    """

    def __init__(self, play: connections.Play) -> None:
        self._play = play
        # By Target.place. Each place is asked by one thread, over a separate connection.
        self._sessions: dict[str, HostSession] = {}
        self._failures: Counter[str] = Counter()
        self._need_commands: set[str] = set()
        self._is_over = False

    def poll(
        self, target: Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> Mapping[str, object]:
        """Return updates of the ranks on the machine of ``target``; see train/host/updates.py."""
        if self._play.is_here(target.host, _purpose(target)):
            # This machine trains as well: a process for each request would cost one step in fifty.
            return updates.wait_for_updates(cursors, wait, interval)
        place, began = target.place, time.monotonic()
        if wait and place not in self._need_commands:
            request = {"cursors": cursors, "wait": wait, "interval": interval}
            try:
                answer = self._session(target).ask(request)
            except SessionError:
                self.leave(target)
                self._failures[place] += 1
                self._need_commands.add(place)
            else:
                self._failures[place] = 0
                return answer
        if self._is_over:
            raise OSError("the watch is over")
        # The host must answer in time, or it counts as unresponsive.
        left = max(0.0, wait - (time.monotonic() - began))
        arguments = (json.dumps(cursors), str(left), str(interval))
        done = self._run(target, "updates", *arguments, purpose=_purpose(target))
        if self._failures[place] < _TRIES:
            self._need_commands.discard(place)
        return done

    def leave(self, target: Target) -> None:
        """End the program on the machine of ``target`` that returns updates."""
        session = self._sessions.pop(target.place, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End all connections to such programs at once. Nothing is asked afterwards."""
        self._is_over = True
        for session in list(self._sessions.values()):
            session.kill()

    def probe(self, target: Target, peers: Peers) -> Mapping[str, object]:
        """Return the results of a host's connections to all ranks; see train/host/probe.py."""
        return self._run(target, "probe", target.rank_dir, json.dumps(peers), str(PROBE_TIMEOUT))

    def _session(self, target: Target) -> HostSession:
        """Return the session with the machine of ``target``. Raise SessionError if it fails."""
        if target.place not in self._sessions:
            words, folder = self._words(target, "updates")
            started = self._play.session(target.host, _purpose(target), words, folder)
            self._sessions[target.place] = started
            if self._is_over:  # since the login began
                raise SessionError("the watch is over")
        return self._sessions[target.place]

    def _run(
        self, target: Target, program: str, *arguments: str, purpose: str = ""
    ) -> Mapping[str, object]:
        """Run one of the launcher's programs on a rank's host and return its output."""
        words, folder = self._words(target, program)
        return self._play.run(target.host, purpose or program, [*words, *arguments], folder)

    def _words(self, target: Target, program: str) -> tuple[list[str], str]:
        """Return the command of one of the launcher's programs, and its folder."""
        words = [target.host_python, "-S", "-E", rank_files.PROGRAMS_FILE, f"train.host.{program}"]
        return words, f"{target.rank_dir}/{rank_files.LAUNCHER_DIR}"


def _purpose(target: Target) -> str:
    """Return the purpose of the connection for updates from the machine of ``target``."""
    return f"updates of {target.place}"
