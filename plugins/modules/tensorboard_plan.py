#!/usr/bin/python
"""Documentation of the action tensorboard_plan, which runs on the control node."""

DOCUMENTATION = r"""
module: tensorboard_plan
short_description: Choose hosts and ports for TensorBoard
description:
  - Chooses the hosts that run TensorBoard, and local ports that are forwarded to them.
options:
  jobs:
    description: Ids of the jobs; empty for all.
    type: list
    elements: str
    required: true
  port:
    description: The first local port to try.
    type: int
    required: true
  registered:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.tensorboard_info) are
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
- name: Choose hosts and ports for TensorBoard
  tensorflow_ansible.cluster.tensorboard_plan:
    jobs: []
    port: 6006
    registered: events
"""

RETURN = r"""
boards:
  description: By host, ports, options of ssh for the forwarding, a secret path and the URL.
  returned: success
  type: dict
"""
