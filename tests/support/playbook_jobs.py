"""Jobs that ``ansible-playbook`` starts and follows, with the interface of ``lab.Command``."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY, Lab, Run, environment, playbook_command

#: The parts of the repository that playbooks need in a clone.
_CLONED = (
    *("ansible.cfg", "galaxy.yml", "inventory", "meta", "playbooks", "plugins", "roles", "train"),
)
_KINDS = ("straggler", "notice", "restart")
_CODES = {"completed": 0, "failed": 1, "stopped": 3}


class PlaybookCommand:
    """A playbook in the background that follows a job.

    Its events are those in the job's ``events.jsonl`` from its start on; its result is
    ``result.json``.

    Args:
        name: ``train.yml`` or ``attach.yml``.
        variables: of the role, including ``train_job_id``.
        clone: the folder of the repository that it runs from.
    """

    def __init__(
        self, lab: Lab, name: str, variables: dict[str, Any], clone: Path = REPOSITORY
    ) -> None:
        given = lab.given(variables)
        self._run_dir = Path(given["train_job_runs_dir"], given["train_job_id"])
        self._output = Path(lab.inventory.parent, f"{name}-{time.monotonic_ns()}.log")
        self._events = self._run_dir / "events.jsonl"
        self._offset = self._events.stat().st_size if self._events.exists() else 0
        self._began = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []  # read but not yet checked
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                playbook_command(str(clone / "playbooks" / name), lab.inventory, given),
                cwd=clone,
                env={**environment(), "ANSIBLE_CONFIG": str(clone / "ansible.cfg")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _new_events(self) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        with self._events.open("rb") as stream:
            stream.seek(self._offset)
            lines = [line for line in stream if line.endswith(b"\n")]
        self._offset += sum(map(len, lines))
        found = []
        for record in map(json.loads, lines):
            kind = next((kind for kind in _KINDS if kind in record), "rank")
            found.append({"event": kind, **record.get(kind, record)})
        return found

    def output(self) -> str:
        """Return the output of the playbook so far."""
        return self._output.read_text()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a matching event, and return it."""
        while True:
            is_over = self.process.poll() is not None
            self._pending += self._new_events()
            while self._pending:
                self.events.append(self._pending.pop(0))
                if wanted(self.events[-1]):
                    return self.events[-1]
            assert not is_over, f"it ended: {self.events[-3:]} {self.output()[-3000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self, timeout: float = 600) -> Run:
        """Wait for its end, and return the outcome."""
        code = self.process.wait(timeout)
        self.events += self._pending + self._new_events()
        path = self._run_dir / "result.json"
        if path.exists():
            saved = json.loads(path.read_text())
            if saved["restart_reason"] and saved["restart_reason"] not in saved["message"]:
                saved["message"] += f"\nnot restarted: {saved['restart_reason']}"
            # The playbook fails if its job does.
            assert (code == 0) == (saved["state"] == "completed"), self.output()[-3000:]
            code = _CODES[saved["state"]]
            self.events.append({"event": "result", **saved})
        return Run(code, time.monotonic() - self._began, self.events, self.output())


def start(
    lab: Lab, job: str, script: str | Path = "", arguments: Sequence[str] = (), **variables: Any
) -> PlaybookCommand:
    """Start a job with ``playbooks/train.yml``, like a user of Ansible."""
    chosen = {"train_job_id": job, "train_job_args": list(arguments), **variables}
    if script:
        chosen["train_job_script"] = str(script)
    return PlaybookCommand(lab, "train.yml", chosen)


def attach(lab: Lab, job: str, clone: Path = REPOSITORY, **variables: Any) -> PlaybookCommand:
    """Follow a job with ``playbooks/attach.yml``."""
    return PlaybookCommand(lab, "attach.yml", {"train_job_id": job, **variables}, clone)


def cloned(folder: Path) -> Path:
    """Return a clone of the repository in a folder, without any jobs."""
    clone = folder / "clone"
    clone.mkdir()
    for name in _CLONED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, clone / name, symlinks=True)
        else:
            shutil.copy(source, clone / name)
    return clone
