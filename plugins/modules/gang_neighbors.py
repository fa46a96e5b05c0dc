#!/usr/bin/python
"""Documentation of the action gang_neighbors, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_neighbors
short_description: Find the inventory hosts that share a machine
description:
  - >-
    Compares the connections of the play's hosts. A host also reports the ranks of its machine
    that have host names of another inventory.
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Find the inventory hosts that share a machine
  tensorflow_ansible.cluster.gang_neighbors:
"""

RETURN = r"""
beside:
  description: For each host, all names of its machine in this play.
  returned: success
  type: dict
"""
