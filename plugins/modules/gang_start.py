#!/usr/bin/python
"""Documentation of the action gang_start, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_start
short_description: Start the ranks of an attempt in the background
description:
  - >-
    Starts the supervisors of the ranks that M(tensorflow_ansible.cluster.gang_stage) has made
    ready, with one command for each machine. A supervisor starts the script and moves into the
    background, so the task ends as soon as all supervisors work.
  - >-
    M(ansible.builtin.command) with C(async) and C(poll: 0) would take 0.2 to 1 s more, and would
    not report a supervisor that did not start.
options:
  hosts:
    description: The inventory hosts of the attempt.
    type: list
    elements: str
    required: true
  beside:
    description: >-
      All names of each host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_variables).
    type: dict
    required: true
  registered:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_stage) is registered.
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
- name: Start the ranks of an attempt in the background
  tensorflow_ansible.cluster.gang_start:
    hosts: '{{ gang.hosts }}'
    beside: '{{ variables.beside }}'
    registered: staged
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    For each inventory host, whether its supervisor was C(started), or the reason as C(msg).
  returned: success
  type: dict
"""
