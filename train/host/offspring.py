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
        #: Whether the processes of a session are descendants, by the session's number.
        self._known = dict.fromkeys(processes.by_session(), False)

    def by_session(self) -> Dict[int, List[int]]:
        """Return the pids of all descendants outside this process's session, by session."""
        found = processes.by_session()
        # The numbers of sessions that have ended may be used again.
        self._known = {number: known for number, known in self._known.items() if number in found}
        return {
            number: pids for number, pids in found.items() if self._are_descendants(number, pids)
        }

    def pids(self) -> List[int]:
        """Return the pids of all descendants outside this process's session."""
        return [pid for pids in self.by_session().values() for pid in pids]

    def _are_descendants(self, session: int, pids: List[int]) -> bool:
        """Return whether the processes of a session are descendants."""
        for pid in pids if session not in self._known else ():
            is_descendant = self._is_descendant(pid)
            if is_descendant is not None:
                self._known[session] = is_descendant
                break
        return self._known.get(session, False)

    def _is_descendant(self, pid: int) -> Optional[bool]:
        """Return whether a process is a descendant; None if it or an ancestor has ended."""
        while True:
            fields = processes.stat(pid)
            if not fields:
                return None
            pid = int(fields[1])
            if pid in (0, self._pid):
                return pid == self._pid
            session = processes.session(pid)
            if session in self._known:
                return self._known[session]
