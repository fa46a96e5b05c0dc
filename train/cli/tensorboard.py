"""TensorBoard of jobs: of those on the hosts, through playbooks/tensorboard.yml, or of runs/."""

from __future__ import annotations

import http.client
import os
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from train.cli import playbooks
from train.cli.ansible_options import Inventory
from train.cli.events import Variables
from train.host.tensorboard import ADDRESS, command


def show(
    inventory: Inventory,
    variables: Variables,
    interrupts: Sequence[int],
    notice: Callable[[str], None],
    complain: Callable[[str], None],
) -> playbooks.Outcome:
    """Show TensorBoard of the jobs on the hosts until an interrupt.

    Args:
        variables: of the role, ``train_job_tensorboard_jobs`` and ``..._port`` among them.
        interrupts: the signals that came; the first one ends it.
        notice: gets a line for each host: where it is to be seen, once it answers.
        complain: gets what is left out, and what fails, each once.
    """
    playbook = playbooks.Playbook("tensorboard.yml", inventory, variables)
    answered: set[str] = set()
    said: set[str] = set()

    def complain_of_the_new() -> None:
        for line in [*playbook.outcome.warnings, *playbook.outcome.messages]:
            if line not in said:
                said.add(line)
                complain(line)

    try:
        while not playbook.wait(0.25):
            if interrupts:
                break
            complain_of_the_new()
            for host, board in playbook.outcome.result("tensorboard").get("boards", {}).items():
                url = f"http://{ADDRESS}:{board['here']}/"
                if host not in answered and _answers(url):
                    answered.add(host)
                    notice(f"TensorBoard of {host}: {url} (Ctrl-C ends it)")
        complain_of_the_new()
    finally:
        outcome = playbook.close()
    return outcome


def _answers(url: str) -> bool:
    """Tell whether something answers there."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


def show_fetched(python: Path, runs_dir: Path, jobs: Sequence[str], port: int) -> int:
    """Become TensorBoard of what was fetched to this machine.

    Args:
        python: an interpreter that has TensorBoard.
        jobs: folders in ``runs_dir``; empty for all.

    Raises:
        FileNotFoundError: there is no such job, or no such interpreter.
    """
    for path in (python, *(runs_dir / job for job in jobs)):
        path.stat()
    words = command(str(python), str(runs_dir), list(jobs), port)
    os.execv(words[0], words)
