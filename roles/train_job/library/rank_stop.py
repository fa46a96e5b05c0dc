#!/usr/bin/python
"""Ends a rank and proves it.

It takes its arguments as JSONARGS modules do, in its own text, and imports nothing of Ansible's:
see train/gang/host_modules.py.
"""

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
    required: true
  for_good:
    description:
      - Whether the job is not to be started again by whoever follows it. Between two attempts it
        has no rank that could be stopped.
    type: bool
    default: false
  reason:
    description: Why, for the rank's state.
    type: str
    required: true
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
    grace: 10
    reason: was stopped
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

import base64
import contextlib
import json
import os
import sys
import time
from typing import Any

# Ansible puts the arguments here: <<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>
PARAMS = json.loads("<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>>")
_archive = os.memfd_create("launcher")
os.write(_archive, base64.b64decode(PARAMS["launcher"]))
sys.path.insert(0, "/proc/self/fd/%d" % _archive)

from host import processes, ranks, records

#: What is not told of a rank that is not there, or is only looked at.
NOTHING: dict[str, Any] = {
    "ended": 0,
    "port": None,
    "port_free": None,
    "gpu_memory_free": None,
}


class StopError(Exception):
    """What could not be ended; the module's ``msg``, with the receipt."""

    def __init__(self, message: str, receipt: dict[str, Any]) -> None:
        super().__init__(message)
        self.receipt = receipt


def stop() -> dict[str, Any]:
    """End the rank and return what the module gives.

    Raises:
        StopError: something of the rank is left.
    """
    root = os.path.abspath(os.path.expanduser(os.path.expandvars(PARAMS["root"])))
    rank_dir = ranks.find(root, PARAMS["host"], PARAMS["job"])
    if rank_dir is None:
        receipt = {"was": ranks.ABSENT, "phase": ranks.ABSENT, "remaining": []}
        return {"changed": False, "receipt": dict(NOTHING, **receipt)}
    was = ranks.observe(rank_dir)["phase"]
    left = sorted(ranks.processes_of(rank_dir))
    changed = was in records.ALIVE_PHASES or bool(left)
    if PARAMS.get("for_good") and not PARAMS["_ansible_check_mode"]:
        path = os.path.join(os.path.dirname(rank_dir), records.TOLD_TO_STOP_FILE)
        with contextlib.suppress(OSError):  # a full disk is a reason to stop a job, not to go on
            records.write_json(path, {"at": round(time.time(), 3)})
    if PARAMS["_ansible_check_mode"] or was == ranks.ABSENT:
        receipt = {"was": was, "phase": was, "remaining": left}
        return {"changed": changed, "receipt": dict(NOTHING, **receipt)}
    receipt = ranks.stop(rank_dir, float(PARAMS["grace"]), PARAMS["reason"])
    if receipt["remaining"]:
        pids = ", ".join(map(str, receipt["remaining"]))
        raise StopError(f"processes {pids} of {os.path.basename(rank_dir)} do not end", receipt)
    if changed and receipt["port_free"] is False:
        owner = processes.listener(receipt["port"])
        raise StopError(f"port {receipt['port']} is still held by {owner}", receipt)
    if receipt["gpu_memory_free"] is False:
        task = os.path.basename(rank_dir)
        raise StopError(f"processes of {task} are still on its GPUs (nvidia-smi)", receipt)
    return {"changed": changed, "receipt": receipt}


def main() -> None:
    """Run the module."""
    try:
        print(json.dumps(stop()))
    except StopError as error:
        print(json.dumps({"failed": True, "msg": str(error), "receipt": error.receipt}))
        sys.exit(1)


if __name__ == "__main__":
    main()
