"""TensorBoard of jobs: of those on the hosts, through playbooks/tensorboard.yml, or of runs/."""

from __future__ import annotations

import http.client
import os
import urllib.request
from argparse import Namespace

from train.cli import job as jobs
from train.cli import playbooks
from train.cli.ansible_options import Variables
from train.cli.output import Exit, complain, noted_interrupts
from train.host.tensorboard import ADDRESS, command


def show(args: Namespace, variables: Variables) -> int:
    """Show TensorBoard of the jobs on the hosts until an interrupt, or become that of runs/."""
    if args.here:
        python, runs_dir = jobs.host_python(variables), jobs.run_dir_of("", variables)
        for path in (python, *(runs_dir / job for job in args.jobs)):
            path.stat()
        words = command(str(python), str(runs_dir), args.jobs, args.port)
        os.execv(words[0], words)
    given = {
        **variables,
        "train_job_tensorboard_jobs": args.jobs,
        "train_job_tensorboard_port": args.port,
    }
    answered: set[str] = set()
    said: set[str] = set()

    def complain_of_the_new(outcome: playbooks.Outcome) -> None:
        for line in [*outcome.warnings, *outcome.messages]:
            if line not in said:
                said.add(line)
                complain("tensorboard", line)

    with noted_interrupts() as interrupts:
        playbook = playbooks.Playbook("tensorboard.yml", args.inventory, given)
        try:
            while not (playbook.wait(0.25) or interrupts):
                complain_of_the_new(playbook.outcome)
                boards = playbook.outcome.result("tensorboard").get("boards", {})
                for host, board in boards.items():
                    url = f"http://{ADDRESS}:{board['here']}/"
                    if host not in answered and _answers(url):
                        answered.add(host)
                        print(f"TensorBoard of {host}: {url} (Ctrl-C ends it)", flush=True)
            complain_of_the_new(playbook.outcome)
        finally:
            outcome = playbook.close()
    if outcome.unreachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if outcome.failures else Exit.COMPLETED


def _answers(url: str) -> bool:
    """Return whether something answers there."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
    except (OSError, http.client.HTTPException):
        return False
    return True
