#!/usr/bin/python
"""Takes back what rank_stage did, where the gang does not start."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_unstage
short_description: Take back what rank_stage did, where the gang does not start
description:
  - Gives back the port and the GPUs that were taken for a rank which has not started, and its place
    in the queue. In the job's first attempt, its folder goes, too. Then it fails, so that the play
    ends.
  - Of a later attempt that another control node has claimed, nothing is touched.
  - A rank that was started, and a folder that another start has made, are left as they are.
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  job:
    description: Id of the job.
    type: str
    required: true
  task:
    description: The rank, such as C(worker-0).
    type: str
    required: true
  attempt:
    description: Which start of the gang this was.
    type: int
    required: true
  created_at:
    description: When the job was made, as in its manifest; with its id it names the job.
    type: float
    required: true
  claim:
    description: The mark of the attempt in the job's manifest, by which it is this control node's.
    type: str
    required: true
  lease_dir:
    description: Where the jobs of the machine note which of them has which port and GPU.
    type: path
    required: true
  run_dir:
    description: The job's folder on the control node, for the action.
    type: path
    required: true
attributes:
  check_mode:
    support: none
author: The maintainers
"""

EXAMPLES = r"""
- name: Give back what was taken
  rank_unstage:
    root: ~/train
    job: digits-1
    task: worker-0
    attempt: 1
    created_at: 1795244560.125
    claim: 5f1c8e2a9b7d4036
    lease_dir: /tmp/train-leases
    run_dir: runs/digits-1
"""

RETURN = r"""# """

import contextlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import leases, ranks, records


def remove(job_dir: str, task: str, created_at: float) -> None:
    """Remove the folder of a rank that was never started, and the job's if nothing else is there.

    Raises:
        OSError: it cannot be removed.
    """
    rank_dir = os.path.join(job_dir, task)
    spec = records.read_whole(os.path.join(rank_dir, records.RANK_FILE)) or {}
    own = (spec.get("leases") or {}).get("created_at") == created_at
    if not own or ranks.observe(rank_dir)["phase"] != ranks.ABSENT:
        return
    shutil.rmtree(rank_dir)
    with contextlib.suppress(FileNotFoundError):  # another rank of this machine does the same
        if not any(entry.is_dir() for entry in os.scandir(job_dir)):
            shutil.rmtree(job_dir)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str", "required": True},
            "task": {"type": "str", "required": True},
            "attempt": {"type": "int", "required": True},
            "created_at": {"type": "float", "required": True},
            "claim": {"type": "str", "required": True},
            "lease_dir": {"type": "path", "required": True},
            "run_dir": {"type": "path", "required": True},
        },
    )
    job, task, attempt = (module.params[name] for name in ("job", "task", "attempt"))
    created_at: float = module.params["created_at"]
    told = "what was taken for the job is free again"
    job_dir = os.path.join(os.path.abspath(module.params["root"]), "jobs", job)
    claim = os.path.join(job_dir, records.CLAIM_FILE % attempt)
    try:
        if attempt == 1:
            remove(job_dir, task, created_at)
        elif records.read_claim(claim) == module.params["claim"]:
            os.unlink(claim)
        elif os.path.exists(claim):
            module.fail_json(msg="nothing was started: the attempt is another control node's")
    except FileNotFoundError:
        pass  # another rank of this machine does the same
    except OSError as error:
        told = f"the rank's folder is left: {error}"
    leases.give_back(module.params["lease_dir"], leases.Holder(created_at, job, task, attempt))
    module.fail_json(msg=f"nothing was started, and {told}")


if __name__ == "__main__":
    main()
