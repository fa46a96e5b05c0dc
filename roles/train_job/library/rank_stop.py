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
  host:
    description: The inventory host, whose rank it is.
    type: str
    required: true
  grace:
    description: Seconds between TERM and KILL.
    type: float
    default: 10
  for_good:
    description:
      - Whether the job is not to be started again by whoever follows it. Between two attempts it
        has no rank that could be stopped.
    type: bool
    default: false
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
    host: node-1
"""

RETURN = r"""
receipt:
  description:
    - C(was) and C(phase) are the phases before and after, C(ended) is how many processes of the
      script were ended, C(remaining) are those that could not be, C(port_free) whether nobody
      listens on C(port) any more, C(gpu_memory_free) whether the driver lists none of the rank's
      processes on its GPUs any more. They are null for what the rank does not have, and where it is
      not known.
  returned: always
  type: dict
  sample:
    was: running
    phase: stopped
    ended: 3
    remaining: []
    port: 12345
    port_free: true
    gpu_memory_free: null
"""

import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import processes, ranks, records

#: What is not told of a rank that is not there, or is only looked at.
NOTHING: dict[str, Any] = {
    "ended": 0,
    "port": None,
    "port_free": None,
    "gpu_memory_free": None,
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "grace": {"type": "float", "default": 10.0},
            "for_good": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": "was stopped"},
        },
        supports_check_mode=True,
    )
    root = os.path.abspath(module.params["root"])
    rank_dir = ranks.find(root, module.params["host"], module.params["job"])
    if rank_dir is None:
        receipt = {"was": ranks.ABSENT, "phase": ranks.ABSENT, "remaining": []}
        module.exit_json(changed=False, receipt=dict(NOTHING, **receipt))
    was = ranks.observe(rank_dir)["phase"]
    left = processes.marked(records.ENV_RANK_DIR, rank_dir)
    changed = was in records.ALIVE_PHASES or bool(left)
    if module.check_mode or was == ranks.ABSENT:
        receipt = {"was": was, "phase": was, "remaining": left}
        module.exit_json(changed=changed, receipt=dict(NOTHING, **receipt))
    if module.params["for_good"]:
        path = os.path.join(os.path.dirname(rank_dir), records.TOLD_TO_STOP_FILE)
        records.write_json(path, {"at": round(time.time(), 3)})
    receipt = ranks.stop(rank_dir, module.params["grace"], module.params["reason"])
    if receipt["remaining"]:
        pids = ", ".join(map(str, receipt["remaining"]))
        module.fail_json(
            msg=f"processes {pids} of {os.path.basename(rank_dir)} do not end", receipt=receipt
        )
    if changed and receipt["port_free"] is False:
        owner = processes.listener(receipt["port"])
        module.fail_json(msg=f"port {receipt['port']} is still held by {owner}", receipt=receipt)
    if receipt["gpu_memory_free"] is False:
        module.fail_json(
            msg=f"processes of {os.path.basename(rank_dir)} are still on its GPUs (nvidia-smi)",
            receipt=receipt,
        )
    module.exit_json(changed=changed, receipt=receipt)


if __name__ == "__main__":
    main()
