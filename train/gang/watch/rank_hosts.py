"""Sends the requests of a watch to the hosts of its ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from train.gang import connections
from train.gang.host_session import HostSession, SessionError
from train.gang.watch.diagnosis import Peers
from train.gang.watch.views import Target
from train.host import rank_files, updates

#: Seconds for a host to connect to all ranks.
PROBE_TIMEOUT = 3.0


class RankHosts:
    """The hosts of ranks, reached over connections of the play.

    For updates, a program stays on each machine if the connection allows it. If it does not answer,
    the request is sent again with a command, whose error is reported. Once a command has worked,
    the program is started again, unless it has never answered.
    """

    def __init__(self, play: connections.Play) -> None:
        self._play = play
        # By Target.place. Each place is only asked by one thread.
        self._sessions: dict[str, HostSession] = {}
        self._have_answered: set[str] = set()
        self._need_commands: set[str] = set()

    def poll(
        self, target: Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> Mapping[str, object]:
        """Return updates of the ranks on the machine of ``target``; see train/host/updates.py."""
        if self._play.is_here(target.host, "updates"):
            # This machine trains as well: a process for each request would cost one step in fifty.
            return updates.wait_for_updates(cursors, wait, interval)
        place = target.place
        if wait and place not in self._need_commands:
            request = {"cursors": cursors, "wait": wait, "interval": interval}
            try:
                answer = self._session(target).ask(request)
            except SessionError:
                self.leave(target)
                self._need_commands.add(place)
            else:
                self._have_answered.add(place)
                return answer
        done = self._run(target, "updates", json.dumps(cursors), str(wait), str(interval))
        if place in self._have_answered:
            self._need_commands.discard(place)
        return done

    def leave(self, target: Target) -> None:
        """End the program on the machine of ``target`` that returns updates."""
        session = self._sessions.pop(target.place, None)
        if session is not None:
            session.close()

    def probe(self, target: Target, peers: Peers) -> Mapping[str, object]:
        """Return the results of a host's connections to all ranks; see train/host/probe.py."""
        return self._run(target, "probe", target.rank_dir, json.dumps(peers), str(PROBE_TIMEOUT))

    def _session(self, target: Target) -> HostSession:
        """Return the session with the machine of ``target``. Raise SessionError if it fails."""
        if target.place not in self._sessions:
            words, folder = self._words(target, "updates")
            self._sessions[target.place] = self._play.session(target.host, "updates", words, folder)
        return self._sessions[target.place]

    def _run(self, target: Target, program: str, *arguments: str) -> Mapping[str, object]:
        """Run one of the launcher's programs on a rank's host and return its output."""
        words, folder = self._words(target, program)
        return self._play.run(target.host, program, [*words, *arguments], folder)

    def _words(self, target: Target, program: str) -> tuple[list[str], str]:
        """Return the command of one of the launcher's programs, and its folder."""
        words = [target.host_python, "-S", "-E", rank_files.PROGRAMS_FILE, f"train.host.{program}"]
        return words, f"{target.rank_dir}/{rank_files.LAUNCHER_DIR}"
