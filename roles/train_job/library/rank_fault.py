#!/usr/bin/python
"""Injects a fault into a rank of a drill, or into its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_fault
short_description: Inject a fault into a rank of a drill
description:
  - Kills or freezes a rank's script, drops what comes to its port, or stops sshd for a while. It is
    refused for jobs whose id does not begin with C(drill-).
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  job:
    description: Id of the job.
    type: str
    required: true
  host:
    description: The rank's inventory host.
    type: str
    required: true
  fault:
    description: The fault.
    type: str
    choices: [kill, freeze, port, ssh]
    required: true
  seconds:
    description: How long a port is dropped or sshd stopped.
    type: float
    default: 15
attributes:
  check_mode:
    support: none
author: The maintainers
"""

EXAMPLES = r"""
- name: Kill the rank
  rank_fault:
    root: ~/train
    job: drill-kill-120000
    host: node-2
    fault: kill
"""

RETURN = r"""
delay:
  description: In how many seconds it begins; not there where it cannot be done.
  returned: success
  type: float
skipped_because:
  description: Why it cannot be done on this host; empty where it is done.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import faults, ranks


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "fault": {"type": "str", "required": True, "choices": list(faults.FAULTS)},
            "seconds": {"type": "float", "default": 15.0},
        },
    )
    params = module.params
    if not params["job"].startswith("drill-"):
        module.fail_json(msg=f"{params['job']} is no job of a drill")
    rank_dir = ranks.find(os.path.abspath(params["root"]), params["host"], params["job"])
    if rank_dir is None:
        module.fail_json(msg=f"this host has no rank of job {params['job']}")
    try:
        done = faults.inject(params["fault"], ranks.observe(rank_dir), params["seconds"])
    except faults.FaultError as error:
        module.exit_json(changed=False, skipped_because=str(error))
    module.exit_json(changed=True, skipped_because="", **done)


if __name__ == "__main__":
    main()
