#!/usr/bin/python
"""Documentation of the action rank_fault, which runs on a host."""

DOCUMENTATION = r"""
module: rank_fault
short_description: Inject a fault of a drill into a rank
description:
  - Kills or freezes the rank, blocks its port or stops SSH for a while.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id.
    type: str
    required: true
  fault:
    description: The fault, as in C(train_job_fault).
    type: str
    required: true
  seconds:
    description: Seconds that the fault lasts, if it ends by itself.
    type: float
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Inject a fault of a drill into a rank
  tensorflow_ansible.cluster.rank_fault:
    root: ~/train
    job: drill-1
    fault: kill
    seconds: 10
"""

RETURN = r"""
delay:
  description: Seconds after which the fault takes effect.
  returned: success
  type: float
skipped_because:
  description: Why the fault cannot be injected on this host.
  returned: success
  type: str
"""
