#!/usr/bin/python
"""Documentation of the action rank_info, which runs on a host."""

DOCUMENTATION = r"""
module: rank_info
short_description: Report the state of a job's ranks on a host
description:
  - >-
    Reports the phase, the progress and the last line of the log of each rank of a job on this host.
    Nothing is changed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id; empty for the newest job with a rank of this host.
    type: str
    required: true
  beside:
    description: >-
      All names of this host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_neighbors).
    type: list
    elements: str
    default: []
  manifest:
    description: Whether to return the job's description as well.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Report the state of a job's ranks on a host
  tensorflow_ansible.cluster.rank_info:
    root: ~/train
    job: digits-1
"""

RETURN = r"""
rank:
  description: The rank, or null.
  returned: success
  type: dict
state:
  description: 'The state of the rank: phase, exit code, reason, times.'
  returned: success
  type: dict
progress:
  description: The last values that the script reported.
  returned: success
  type: dict
last_line:
  description: The last line of the log.
  returned: success
  type: str
more:
  description: The same for further ranks of the host's machine.
  returned: success
  type: list
  elements: raw
manifest:
  description: The job's description on this host.
  returned: success
  type: dict
"""
