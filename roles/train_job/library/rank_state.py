#!/usr/bin/python
"""Tells the state of a rank from its host alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_state
short_description: Tell the state of a rank from its host alone
description:
  - Reads the rank's folder and looks at its processes. Nothing on the control node is needed.
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  job:
    description: Id of the job; empty for the newest one that has this task on this host.
    type: str
    default: ""
  task:
    description: The rank, such as C(worker-0).
    type: str
    required: true
attributes:
  check_mode:
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Look at the rank
  rank_state:
    root: ~/train
    job: digits-1
    task: worker-0
"""

RETURN = r"""
rank:
  description: The rank, in the form that rank_stage returns, too; null where there is none.
  returned: success
  type: dict
state:
  description: The contents of C(state.json), corrected by what runs; see docs/formats.md.
  returned: success
  type: dict
  sample:
    phase: running
    pid: 4711
progress:
  description: The last progress record; an empty object where there is none.
  returned: success
  type: dict
last_line:
  description: The last line of the log.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import console, ranks, records


def tail(path: str, size: int = 65_536) -> bytes:
    """Return the last ``size`` bytes of a file; a missing one is empty."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.path.getsize(path) - size))
            return stream.read()
    except FileNotFoundError:
        return b""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "job": {"type": "str", "default": ""},
            "task": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    root = os.path.abspath(module.params["root"])
    task: str = module.params["task"]
    found = [
        path
        for path in ranks.rank_dirs(root, module.params["job"] or None)
        if os.path.basename(path) == task
    ]
    if not found:
        module.exit_json(rank=None, state={"phase": ranks.ABSENT}, progress={}, last_line="")
    rank_dir = found[0]
    spec = records.read_json(os.path.join(rank_dir, records.RANK_FILE)) or {}
    progress = records.parse_progress(
        tail(os.path.join(rank_dir, records.PROGRESS_FILE)).decode(errors="replace")
    )
    parser = console.ConsoleParser()
    parser.feed(tail(os.path.join(rank_dir, records.LOG_FILE)))
    module.exit_json(
        rank=ranks.identify(rank_dir, spec),
        state=ranks.observe(rank_dir),
        progress=progress[-1] if progress else {},
        last_line=parser.last_line,
    )


if __name__ == "__main__":
    main()
