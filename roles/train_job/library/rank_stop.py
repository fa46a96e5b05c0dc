#!/usr/bin/python
"""Ends a rank and proves it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_stop
short_description: End a rank and prove it
description:
  - Ends every process of a rank (TERM, grace, KILL), looks whether any is left and whether its port
    is free, and fails if not. A rank that has ended is left as it is.
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
  grace:
    description: Seconds between TERM and KILL.
    type: float
    default: 10
  reason:
    description: Why, for the rank's state.
    type: str
    default: was stopped
attributes:
  check_mode:
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Stop the rank
  rank_stop:
    root: ~/train
    job: digits-1
    task: worker-0
"""

RETURN = r"""
receipt:
  description:
    - C(was) and C(phase) are the phases before and after, C(remaining) the processes that could not
      be ended, C(port_free) whether nobody listens on C(port) any more.
  returned: always
  type: dict
  sample:
    was: running
    phase: stopped
    remaining: []
    port: 12345
    port_free: true
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import processes, ranks, records


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str", "required": True},
            "task": {"type": "str", "required": True},
            "grace": {"type": "float", "default": 10.0},
            "reason": {"type": "str", "default": "was stopped"},
        },
        supports_check_mode=True,
    )
    root = os.path.abspath(module.params["root"])
    rank_dir = os.path.join(root, "jobs", module.params["job"], module.params["task"])
    was = ranks.observe(rank_dir)["phase"]
    left = processes.marked(records.ENV_RANK_DIR, rank_dir)
    changed = was in records.ALIVE_PHASES or bool(left)
    if module.check_mode or was == ranks.ABSENT:
        receipt = {"was": was, "phase": was, "remaining": left, "port": None, "port_free": None}
        module.exit_json(changed=changed, receipt=receipt)
    receipt = ranks.stop(rank_dir, module.params["grace"], module.params["reason"])
    if receipt["remaining"]:
        pids = ", ".join(map(str, receipt["remaining"]))
        module.fail_json(
            msg=f"processes {pids} of {module.params['task']} do not end", receipt=receipt
        )
    if changed and receipt["port_free"] is False:
        owner = processes.listener(receipt["port"])
        module.fail_json(msg=f"port {receipt['port']} is still held by {owner}", receipt=receipt)
    module.exit_json(changed=changed, receipt=receipt)


if __name__ == "__main__":
    main()
