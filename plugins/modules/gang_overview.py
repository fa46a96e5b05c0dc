#!/usr/bin/python
"""Documentation of the action gang_overview, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_overview
short_description: Follow the use of all hosts, and the jobs on them
description:
  - >-
    Asks all hosts at regular intervals for their load, memory, disk and GPUs, their jobs, and who
    holds their ports and GPUs. Nothing is changed on them.
  - The task runs until the playbook is interrupted.
options:
  folder:
    description: The folder on the control node in which to write C(overview.json).
    type: path
    required: true
  interval:
    description: Seconds between two questions to a host.
    type: float
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Follow the use of all hosts
  tensorflow_ansible.cluster.gang_overview:
    folder: /home/me/dashboard
    interval: 5
"""

RETURN = r"""
{}
"""
