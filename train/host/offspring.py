"""Lists the descendants of a supervisor repeatedly, without reading about all processes.

A process belongs to the session of its parent unless it creates one. Therefore either all or none
of a session's processes are descendants, and only new sessions have to be examined.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

from . import processes


class Offspring:
    """The descendants of this process, which leads a session and has called ``processes.adopt``.

    Sessions that exist when this object is created are not theirs.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        #: The sessions of other processes.
        self._others = {*processes.by_session()}

    def by_session(self) -> Dict[int, List[int]]:
        """Return the pids of all descendants outside this process's session, by session."""
        found = processes.by_session()
        # The numbers of sessions that have ended may be used again.
        self._others.intersection_update(found)
        return {
            number: pids
            for number, pids in found.items()
            if number not in self._others and self._are_descendants(number, pids)
        }

    def pids(self) -> List[int]:
        """Return the pids of all descendants outside this process's session."""
        return [pid for pids in self.by_session().values() for pid in pids]

    def _are_descendants(self, session: int, pids: List[int]) -> bool:
        """Return whether the processes of a session are descendants, as far as that is known."""
        for pid in pids:
            is_descendant = self._is_descendant(pid)
            if is_descendant is not None:
                if not is_descendant:
                    self._others.add(session)
                return is_descendant
        return False

    def _is_descendant(self, pid: int) -> Optional[bool]:
        """Return whether a process is a descendant; None if that is unknown."""
        while pid not in (0, self._pid):
            if processes.session(pid) in self._others:
                return False
            try:
                pid = int(processes.stat(pid)[1])
            except (OSError, IndexError):  # it has ended, or cannot be read
                return None
        return pid == self._pid
