#!/usr/bin/python
"""Documentation of the action gang_update_host, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_update_host
short_description: Read a host's variables from the inventory again
description:
  - >-
    Reads the sources of the inventory without caches, and sets the variables that they have for the
    host. Variables of groups, and of files in C(host_vars), are not read again.
options:
  name:
    description: The name of the inventory host.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Use the address of a new instance
  tensorflow_ansible.cluster.gang_update_host:
    name: node-2
"""

RETURN = r"""
add_host:
  description: The host, as M(ansible.builtin.add_host) returns it.
  returned: if the inventory has the host
  type: dict
"""
