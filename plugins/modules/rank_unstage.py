#!/usr/bin/python
"""Documentation of the action rank_unstage, which runs on a host."""

DOCUMENTATION = r"""
module: rank_unstage
short_description: Release the resources of a rank that has not started
description:
  - >-
    Undoes M(tensorflow_ansible.cluster.gang_stage): releases port and GPUs, and removes the
    rank's folder or restores it to its state after the previous attempt.
  - Always fails, so that the play ends.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id.
    type: str
    required: true
  task:
    description: The rank's task type and index, such as V(worker-1).
    type: str
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  created_at:
    description: When the job was planned, from its manifest.
    type: float
    required: true
  claim:
    description: The plan's id, from the manifest.
    type: str
    required: true
  lease_dir:
    description: The folder on the host in which all users' ports and GPUs are leased.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Release the resources of a rank that has not started
  tensorflow_ansible.cluster.rank_unstage:
    root: ~/train
    job: digits-1
    task: worker-1
    attempt: 1
    created_at: 1764180000.5
    claim: 5f0c1b2a
    lease_dir: /var/tmp/train-leases
"""

RETURN = r"""
released:
  description: >-
    Whether the resources were released. The task fails in any case, so that the play ends.
  returned: always
  type: bool
"""
