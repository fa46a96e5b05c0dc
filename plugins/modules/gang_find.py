#!/usr/bin/python
"""Documentation of the action gang_find, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_find
short_description: Find a running or ended job on its hosts
description:
  - >-
    Assembles the description of a job from its hosts, for a control node that may have no data
    about it, and writes its manifest there.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  job:
    description: The job's id.
    type: str
    required: true
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  run_dir:
    description: The job's folder on the control node.
    type: str
    required: true
  code_limit_mb:
    description: Maximum size of the code archive to fetch, in MiB.
    type: float
    required: true
  readable_by:
    description: Who may read the job's folder.
    type: str
    choices: [owner, all]
    required: true
  registered:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_states) is registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
    details: The manifest is written even in check mode, because nothing changes on hosts.
author: The maintainers
"""

EXAMPLES = r"""
- name: Find a running or ended job on its hosts
  tensorflow_ansible.cluster.gang_find:
    groups: '{{ train_job_groups }}'
    job: digits-1
    root: ~/train
    run_dir: runs/digits-1
    code_limit_mb: 100
    readable_by: owner
    registered: info
"""

RETURN = r"""
job:
  description: The job's id.
  returned: success
  type: str
attempt:
  description: The number of the attempt.
  returned: success
  type: int
run_dir:
  description: The job's folder on the control node.
  returned: success
  type: str
hosts:
  description: The hosts of the attempt, chief first.
  returned: success
  type: list
  elements: raw
found_ranks:
  description: The rank of each host, as it reports it.
  returned: success
  type: list
  elements: raw
"""
