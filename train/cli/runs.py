"""The role's variables that a job was started with, kept for what is done with it later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.gang import REPOSITORY
from train.gang.plan.ranks import check_id
from train.host import records

VARIABLES_FILE = "variables.json"
#: What may hold secrets. The script's environment is on the hosts.
_SECRET = ("train_job_environment", "train_job_notify_command", "train_job_notify_webhook")

#: Jinja's delimiters.
_TEMPLATE = re.compile(r"\{[{%#]")


def run_dir_of(job: str, variables: Mapping[str, Any]) -> Path:
    """Return the job's folder on the control node; without a job, that of all jobs.

    Raises:
        PlanError: it is no job id.
    """
    if job:
        check_id(job)
    runs_dir = Path(variables.get("train_job_runs_dir", REPOSITORY / "runs"))
    return runs_dir.expanduser().resolve() / job


def keep(job: str, variables: Mapping[str, Any]) -> None:
    """Write the role's ``variables`` into the job's folder, but for what may be secret.

    Raises:
        OSError: the folder cannot be written.
    """
    kept = {n: v for n, v in variables.items() if n.startswith("train_job_") and n not in _SECRET}
    records.write_json(str(run_dir_of(job, variables) / VARIABLES_FILE), kept, mode=0o600)


def with_kept(job: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``variables`` with those of the job's start, if this control node started it.

    What is kept in a file is never templated: a value with Jinja is left out, to be given again.

    Args:
        job: its id; empty for no certain one.
    """
    given = dict(variables or {})
    path = run_dir_of(job, given) / VARIABLES_FILE
    kept = (records.read_json(str(path)) or {}) if job else {}
    return {**{n: v for n, v in kept.items() if not _TEMPLATE.search(json.dumps(v))}, **given}
