#!/usr/bin/python
"""Documentation of the action environment_info, which runs on a host."""

DOCUMENTATION = r"""
module: environment_info
short_description: Describe a framework's environment on a host
description:
  - >-
    Describes the environment that the role tensorflow has created, and the packages on top of it.
    Nothing is changed.
options:
  python:
    description: The interpreter of the environment.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Describe a framework's environment on a host
  tensorflow_ansible.cluster.environment_info:
    python: ~/train/venv/bin/python
"""

RETURN = r"""
environment:
  description: The environment; null if the role tensorflow did not create it.
  returned: success
  type: dict
"""
