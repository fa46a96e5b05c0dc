"""Follows the hosts with one playbook for all viewers, and only while a page is open."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from train.cli import playbooks
from train.cli.ansible_options import AnsibleOptions, Variables
from train.gang.job_records import OVERVIEW_FILE, Listed
from train.gang.scratch import Scratch
from train.host import json_files

#: Seconds after the last page was closed in which the playbook still runs.
LINGER_S = 20.0
#: Seconds between two polls of a host, and seconds without an answer until it counts as lost.
INTERVAL_S, LOST_S = 4.0, 11.0
#: Seconds before a playbook that has ended is started again.
_PAUSES = (2.0, 5.0, 15.0, 60.0)
_STEP_S = 0.25

NOTHING: Listed = {"at": 0.0, "hosts": {}, "jobs": []}


class HostFollower:
    """Runs the playbook that follows the hosts, while ``keep`` is called.

    Attributes:
        listed: the last overview of the hosts and their jobs.
        error: why the playbook has ended; empty while it runs.
    """

    def __init__(self, inventory: AnsibleOptions, variables: Variables) -> None:
        self._inventory, self._variables = inventory, variables
        self._wanted_until = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.listed: Listed = NOTHING
        self.error = ""

    def start(self) -> None:
        """Start to wait for viewers."""
        self._thread.start()

    def close(self) -> None:
        """End the playbook."""
        self._over.set()
        self._thread.join()

    def keep(self) -> None:
        """Follow the hosts for some more seconds."""
        self._wanted_until = time.monotonic() + LINGER_S

    @property
    def _is_wanted(self) -> bool:
        return not self._over.is_set() and time.monotonic() < self._wanted_until

    def _work(self) -> None:
        failures = 0
        while not self._over.wait(_STEP_S):
            if not self._is_wanted:
                continue
            try:
                failed = self._follow()
            except Exception as error:  # such as an inventory that was removed
                failed = str(error) or type(error).__name__
            self.error = failed
            failures = failures + 1 if failed else 0
            if failed:
                self._over.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _follow(self) -> str:
        """Run the playbook while it is wanted; return why it ended early, or an empty string."""
        with Scratch("dashboard") as folder:
            given: dict[str, Any] = {
                **self._variables,
                "train_job_overview_dir": str(folder),
                "train_job_overview_interval": INTERVAL_S,
            }
            playbook = playbooks.Playbook("overview.yml", self._inventory, given)
            ended = False
            try:
                while self._is_wanted and not ended:
                    ended = playbook.wait(_STEP_S)
                    self._read(folder)
            finally:
                outcome = playbook.close()
        self.listed = NOTHING
        return "\n".join(outcome.messages) or "the playbook ended" if ended else ""

    def _read(self, folder: Any) -> None:
        found = json_files.read_json(str(folder / OVERVIEW_FILE))
        if found is not None:
            self.listed, self.error = cast("Listed", found), ""
