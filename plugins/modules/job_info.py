#!/usr/bin/python
"""Documentation of the action job_info, which runs on a host."""

DOCUMENTATION = r"""
module: job_info
short_description: List the jobs on a host
description:
  - >-
    Lists the jobs that have a folder on the host, with their ranks, and the ports and GPUs that
    all users have leased. Nothing is changed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: List only this job.
    type: str
  lines:
    description: Report where the last O(lines) lines of each log begin.
    type: int
  sizes:
    description: Whether to report the size of each job's folder.
    type: bool
    default: false
  lease_dir:
    description: The folder with the leases.
    type: str
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: List the jobs on a host
  tensorflow_ansible.cluster.job_info:
    root: ~/train
    sizes: true
"""

RETURN = r"""
jobs:
  description: The jobs.
  returned: success
  type: list
  elements: raw
leases:
  description: Who has leased which port or GPU.
  returned: success
  type: list
  elements: raw
"""
