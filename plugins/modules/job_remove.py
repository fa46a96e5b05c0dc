#!/usr/bin/python
"""Documentation of the action job_remove, which runs on a host."""

DOCUMENTATION = r"""
module: job_remove
short_description: Remove the folders of ended jobs on a host
description:
  - >-
    Removes the folders of ended jobs, and environments with packages that only they used. Links
    are not followed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  jobs:
    description: Ids of the jobs.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Remove the folders of ended jobs on a host
  tensorflow_ansible.cluster.job_remove:
    root: ~/train
    jobs:
      - digits-1
"""

RETURN = r"""
removed:
  description: The removed jobs, with their sizes in bytes.
  returned: success
  type: list
  elements: raw
kept:
  description: Why other jobs were not removed.
  returned: success
  type: list
  elements: raw
"""
