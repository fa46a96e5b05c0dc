#!/usr/bin/python
"""Documentation of the action job_choice, which runs on the control node."""

DOCUMENTATION = r"""
module: job_choice
short_description: Choose old jobs across all hosts
description:
  - Chooses the jobs to remove. A job with a live rank on any host is kept.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  older_than:
    description: Choose jobs that ended longer ago than this, such as V(14d).
    type: str
  keep:
    description: Keep this number of newest jobs.
    type: str
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
- name: Choose old jobs across all hosts
  tensorflow_ansible.cluster.job_choice:
    groups: '{{ train_job_groups }}'
    older_than: 14d
    registered: listing
"""

RETURN = r"""
remove:
  description: The jobs to remove from each host that answered; an empty list if there are none.
  returned: success
  type: dict
kept:
  description: Why other jobs are kept.
  returned: success
  type: list
  elements: raw
"""
