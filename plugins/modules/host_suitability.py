#!/usr/bin/python
"""Documentation of the action host_suitability, which runs on a host."""

DOCUMENTATION = r"""
module: host_suitability
short_description: Examine whether a framework can be installed on a host
description:
  - >-
    Logs in and collects facts about the operating system, the interpreters, memory and disks. The
    host needs only a shell. Nothing is changed.
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Examine whether a framework can be installed on a host
  tensorflow_ansible.cluster.host_suitability:
"""

RETURN = r"""
facts:
  description: The facts; absent if the host has no Python.
  returned: success
  type: dict
os:
  description: Names of the operating system, if the host has no Python.
  returned: success
  type: dict
"""
