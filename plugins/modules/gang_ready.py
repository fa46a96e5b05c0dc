#!/usr/bin/python
"""Documentation of the action gang_ready, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_ready
short_description: Require that every rank of an attempt is staged
description:
  - >-
    Fails unless M(tensorflow_ansible.cluster.gang_stage) has succeeded on all hosts, because all
    ranks must start together.
options:
  hosts:
    description: The hosts of the attempt.
    type: list
    elements: str
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  registered:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.gang_stage) are
      registered.
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
- name: Require that every rank of an attempt is staged
  tensorflow_ansible.cluster.gang_ready:
    hosts: '{{ gang.hosts }}'
    attempt: 1
    registered: staged
"""

RETURN = r"""
{}
"""
