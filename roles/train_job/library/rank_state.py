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
  host:
    description: The rank's inventory host.
    type: str
    required: true
  manifest:
    description: Whether to return what the host keeps of the job as a whole.
    type: bool
    default: false
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
    host: node-1
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
manifest:
  description: The contents of C(job.json); null where it is not asked for or not there.
  returned: success
  type: dict
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
            "host": {"type": "str", "required": True},
            "manifest": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root = os.path.abspath(module.params["root"])
    manifest = None
    if module.params["manifest"]:
        job_dir = os.path.join(root, "jobs", module.params["job"])
        manifest = records.read_whole(os.path.join(job_dir, records.JOB_FILE))
    rank_dir = ranks.find(root, module.params["host"], module.params["job"] or None)
    if rank_dir is None:
        nothing = {"state": {"phase": ranks.ABSENT}, "progress": {}, "last_line": ""}
        module.exit_json(rank=None, manifest=manifest, **nothing)
    spec = records.read_whole(os.path.join(rank_dir, records.RANK_FILE)) or {}
    progress = records.parse_progress(
        tail(os.path.join(rank_dir, records.PROGRESS_FILE)).decode(errors="replace")
    )
    parser = console.ConsoleParser()
    parser.feed(tail(os.path.join(rank_dir, records.LOG_FILE)))
    module.exit_json(
        rank=ranks.identify(rank_dir, spec),
        manifest=manifest,
        state=ranks.observe(rank_dir),
        progress=progress[-1] if progress else {},
        last_line=parser.last_line,
    )


if __name__ == "__main__":
    main()
