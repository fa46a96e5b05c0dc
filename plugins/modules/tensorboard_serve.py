#!/usr/bin/python
"""Documentation of the action tensorboard_serve, which runs on a host."""

DOCUMENTATION = r"""
module: tensorboard_serve
short_description: Run TensorBoard on a host
description:
  - Runs TensorBoard until the playbook is interrupted.
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
  python:
    description: The interpreter with TensorBoard.
    type: str
    required: true
  port:
    description: The port on the host's loopback interface.
    type: int
    required: true
  path:
    description: The secret first part of the URL's path.
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
- name: Run TensorBoard on a host
  tensorflow_ansible.cluster.tensorboard_serve:
    root: ~/train
    jobs: []
    python: ~/train/venv/bin/python
    port: 6006
    path: s3cr3t
"""

RETURN = r"""
{}
"""
