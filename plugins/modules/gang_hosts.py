#!/usr/bin/python
"""Documentation of the action gang_hosts, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_hosts
short_description: Choose the hosts of an attempt
description:
  - >-
    Chooses from the hosts that passed M(tensorflow_ansible.cluster.gang_check). Spare hosts
    replace lost ones and, if allowed, the attempt has fewer workers.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  min_workers:
    description: The smallest number of workers to continue with; 0 for all.
    type: int
    required: true
  without:
    description: Why hosts are excluded that could not join a job that should have grown, by host.
    type: dict
    default: {}
  automatic:
    description: Whether the attempt follows a failed one without a user's command.
    type: bool
    default: false
  job:
    description: The job's id; empty if it is not chosen yet.
    type: str
    required: true
  runs_dir:
    description: The folder of results on the control node.
    type: str
    required: true
  checks:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_check) is registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Choose the hosts of an attempt
  tensorflow_ansible.cluster.gang_hosts:
    groups: '{{ train_job_groups }}'
    attempt: 1
    min_workers: 0
    job: ''
    runs_dir: runs
    checks: checks
"""

RETURN = r"""
hosts:
  description: The hosts, chief first.
  returned: success
  type: list
  elements: raw
groups:
  description: The hosts of each task type.
  returned: success
  type: dict
left_out:
  description: Why other hosts are excluded, by host.
  returned: success
  type: dict
"""
