#!/usr/bin/python
"""Documentation of the action gang_add_rank, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_add_rank
short_description: Add a rank of a machine as an inventory host
description:
  - >-
    Adds an inventory host for this run of ansible-playbook, like M(ansible.builtin.add_host). Its
    variables refer to those of the machine's inventory host, so no value is copied.
options:
  name:
    description: The name of the inventory host to add.
    type: str
    required: true
  machine:
    description: The inventory host of the machine.
    type: str
    required: true
  slot:
    description: The number of the rank on the machine, from 1.
    type: int
    required: true
  groups:
    description: The groups of the inventory host to add.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Add the second rank of a machine
  tensorflow_ansible.cluster.gang_add_rank:
    name: node-1-slot-1
    machine: node-1
    slot: 1
    groups: [worker]
"""

RETURN = r"""
add_host:
  description: The host, as M(ansible.builtin.add_host) returns it.
  returned: success
  type: dict
"""
