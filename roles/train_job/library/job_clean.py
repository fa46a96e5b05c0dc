#!/usr/bin/python
"""Removes the folders of jobs that have ended."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_clean
short_description: Remove the folders of jobs that have ended
description:
  - Removes C(<root>/jobs/<job>) of the named jobs. What is no folder of a job, or a link, is left
    alone, and so is a job of which a rank or a process lives, or that ended or was laid out within
    the last ten minutes, whatever was seen before.
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  jobs:
    description: Ids of the jobs.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Remove two jobs
  job_clean:
    root: ~/train
    jobs: [digits-1, digits-2]
"""

RETURN = r"""
removed:
  description: What was removed, with its size in bytes.
  returned: always
  type: list
  elements: dict
  sample:
    - job: digits-1
      size: 1310720
kept:
  description: Why others are not to be removed, in words.
  returned: always
  type: list
  elements: str
  sample: ["digits-2: worker-0 is running"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host import jobs


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "jobs": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    told = jobs.remove(module.params["root"], module.params["jobs"], module.check_mode)
    troubles = told.pop("troubles")
    if troubles:
        module.fail_json(msg="; ".join(troubles), changed=bool(told["removed"]), **told)
    module.exit_json(changed=bool(told["removed"]), **told)


if __name__ == "__main__":
    main()
