#!/usr/bin/python
"""Documentation of the action job_ranks, which runs on the control node."""

DOCUMENTATION = r"""
module: job_ranks
short_description: Return the ranks of a job
description:
  - Finds the ranks of a job in the job lists of all hosts.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  job:
    description: The job's id.
    type: str
    required: true
  after:
    description: Return ranks only of an attempt with a greater number.
    type: int
    default: 0
  registered:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_jobs) is registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Return the ranks of a job
  tensorflow_ansible.cluster.job_ranks:
    groups: '{{ train_job_groups }}'
    job: digits-1
    registered: listing
"""

RETURN = r"""
attempt:
  description: The number of the last attempt.
  returned: success
  type: int
restarts:
  description: Whether another attempt may follow.
  returned: success
  type: bool
ranks:
  description: The ranks.
  returned: success
  type: list
  elements: raw
"""
