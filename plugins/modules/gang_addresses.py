#!/usr/bin/python
"""Documentation of the action gang_addresses, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_addresses
short_description: Return the addresses that hosts use to reach each other
description:
  - Reads C(train_job_address) of each host of the play.
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Return the addresses that hosts use to reach each other
  tensorflow_ansible.cluster.gang_addresses:
"""

RETURN = r"""
addresses:
  description: The address of each host.
  returned: success
  type: dict
"""
