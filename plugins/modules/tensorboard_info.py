#!/usr/bin/python
"""Documentation of the action tensorboard_info, which runs on a host."""

DOCUMENTATION = r"""
module: tensorboard_info
short_description: Find a host's event files and a free port for TensorBoard
description:
  - Lists the event files on the host. Nothing is changed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  jobs:
    description: Ids of the jobs; empty for all.
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
- name: Find a host's event files and a free port for TensorBoard
  tensorflow_ansible.cluster.tensorboard_info:
    root: ~/train
    jobs: []
"""

RETURN = r"""
events:
  description: Names of the event files.
  returned: success
  type: list
  elements: raw
port:
  description: A free port.
  returned: success
  type: int
"""
