#!/usr/bin/python
"""Documentation of the action gang_examine, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_examine
short_description: Measure the paths between hosts and evaluate the results
description:
  - >-
    Lets hosts measure the paths between them, and evaluates the measurements and the results of
    M(tensorflow_ansible.cluster.host_examine).
options:
  addresses:
    description: The address of each host, see M(tensorflow_ansible.cluster.gang_addresses).
    type: dict
    required: true
  parts:
    description: The parts of the examination, as in C(train_job_doctor_parts).
    type: list
    elements: str
    required: true
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  quick:
    description: Whether to measure briefly, in one direction.
    type: bool
    default: false
  registered:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.host_examine) are
      registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Measure the paths between hosts and evaluate the results
  tensorflow_ansible.cluster.gang_examine:
    addresses: '{{ addresses }}'
    parts:
      - hosts
      - alike
      - pairs
    groups: '{{ train_job_groups }}'
    registered: examined
"""

RETURN = r"""
examined:
  description: Facts, measurements and findings.
  returned: success
  type: dict
lines:
  description: A line about each finding.
  returned: success
  type: list
  elements: raw
"""
