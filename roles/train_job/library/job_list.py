#!/usr/bin/python
"""Tells the jobs that a host knows of."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_list
short_description: Tell the jobs that a host knows of
description:
  - Reads the folders of all jobs and looks at their processes. Nothing on the control node is
    needed. Inventory hosts that share a machine see the same jobs; the action plugin job_view puts
    together what all of them saw.
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  job:
    description: Id of the one job to look at; without it, all of them.
    type: str
  lines:
    description: How many lines of each log are wanted, counted from its end; without it, all.
    type: int
  lease_dir:
    description:
      - Folder of the leases; with it, RV(leases) are returned.
    type: path
  sizes:
    description: Whether to measure the space that each job takes.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Look at the jobs
  job_list:
    root: ~/train
    lease_dir: /tmp/train-leases
    sizes: true
"""

RETURN = r"""
jobs:
  description:
    - The jobs with their ranks. C(size) is in bytes; C(idle) are the seconds since a rank's last
      sign of life, C(log_from) is where the wanted lines of its log begin.
  returned: success
  type: list
  elements: dict
  sample:
    - job: digits-1
      size: 1310720
      manifest:
        attempt: 1
        created_at: 1795244563.1
        tasks: {worker-0: node-1}
        hosts: [node-1]
      ranks:
        - job: digits-1
          task: worker-0
          host: node-1
          attempt: 1
          phase: completed
          idle: 86400.5
leases:
  description: Which ranks, of any user, have ports or GPUs of this machine.
  returned: when a folder of leases is given
  type: list
  elements: str
  sample:
    - in use by worker-0 of job night-1 (user anna, since 2026-11-21 02:10:44 +0100)
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import jobs, leases


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str"},
            "lines": {"type": "int"},
            "lease_dir": {"type": "path"},
            "sizes": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    result = {"jobs": jobs.look(given["root"], given["job"], given["lines"], given["sizes"])}
    if given["lease_dir"]:
        found = leases.entries(given["lease_dir"])
        result["leases"] = [leases.whose(one) for one in found if one["state"] != leases.QUEUED]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
