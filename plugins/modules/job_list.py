#!/usr/bin/python
"""Documentation of the action job_list, which runs on the control node."""

DOCUMENTATION = r"""
module: job_list
short_description: Merge the job lists of all hosts
description:
  - Merges the job lists of all hosts, newest job first.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
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
- name: Merge the job lists of all hosts
  tensorflow_ansible.cluster.job_list:
    groups: '{{ train_job_groups }}'
    registered: listing
"""

RETURN = r"""
jobs:
  description: The jobs.
  returned: success
  type: list
  elements: raw
lines:
  description: A line about each job.
  returned: success
  type: list
  elements: raw
"""
