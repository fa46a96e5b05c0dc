#!/usr/bin/python
"""Documentation of the action rank_stop, which runs on a host."""

DOCUMENTATION = r"""
module: rank_stop
short_description: End every process of a rank and verify that
description:
  - >-
    Sends SIGTERM, waits for a grace period, sends SIGKILL, and verifies that no process is left,
    that the port is free and that the GPUs' memory is released.
  - Fails with the names of the remaining processes.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id.
    type: str
    required: true
  beside:
    description: >-
      All names of this host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_neighbors).
    type: list
    elements: str
    default: []
  grace:
    description: Seconds between SIGTERM and SIGKILL.
    type: float
    required: true
  reason:
    description: Why the rank is stopped, as text after its name.
    type: str
    required: true
  permanent:
    description: Whether to prevent later attempts of the job.
    type: bool
    default: false
  lease_dir:
    description: The folder with the leases, to release those of ranks that have not started.
    type: str
  attempt:
    description: Leave ranks of later attempts running.
    type: int
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: End every process of a rank and verify that
  tensorflow_ansible.cluster.rank_stop:
    root: ~/train
    job: digits-1
    grace: 10
    reason: was stopped by hand
    permanent: true
"""

RETURN = r"""
stop_report:
  description: The processes that were found and those that remain.
  returned: success
  type: dict
more:
  description: The same for further ranks of the host's machine.
  returned: success
  type: list
  elements: raw
"""
