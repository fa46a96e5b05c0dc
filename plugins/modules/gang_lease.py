#!/usr/bin/python
"""Documentation of the action gang_lease, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_lease
short_description: Wait for other jobs and lease a gang's ports and GPUs
description:
  - >-
    Waits in the queue of each host until all ports and GPUs of the gang are free, and leases
    them. While it waits, it holds none.
options:
  manifest:
    description: The manifest of M(tensorflow_ansible.cluster.gang_plan).
    type: dict
    required: true
  run_dir:
    description: The job's folder on the control node.
    type: str
    required: true
  wait:
    description: Maximum seconds to wait.
    type: float
    required: true
  unreachable_timeout:
    description: Seconds that a host may be unreachable.
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
- name: Wait for other jobs and lease a gang's ports and GPUs
  tensorflow_ansible.cluster.gang_lease:
    manifest: '{{ gang.manifest }}'
    run_dir: '{{ gang.run_dir }}'
    wait: 3600
    unreachable_timeout: 60
"""

RETURN = r"""
stopped:
  description: How the job was stopped, if it was stopped while it waited.
  returned: success
  type: str
"""
