#!/usr/bin/python
"""Documentation of the action gang_ranks, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_ranks
short_description: Choose the ranks of hosts that have several
description:
  - >-
    Checks C(train_job_ranks) of all hosts. For C(auto), it asks the hosts for the number of their
    GPUs, unless the job has ranks already.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  job:
    description: The job's id; empty if it is not chosen yet.
    type: str
    required: true
  runs_dir:
    description: The folder of results on the control node.
    type: str
    required: true
  starts:
    description: Whether a job starts. Otherwise, invalid values count as one rank.
    type: bool
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Choose the ranks of hosts that have several
  tensorflow_ansible.cluster.gang_ranks:
    groups: '{{ train_job_groups }}'
    job: ''
    runs_dir: runs
    starts: true
"""

RETURN = r"""
ranks:
  description: >-
    The ranks that are not in the inventory yet, as options of
    M(tensorflow_ansible.cluster.gang_add_rank).
  returned: success
  type: list
  elements: dict
"""
