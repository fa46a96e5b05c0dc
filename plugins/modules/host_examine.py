#!/usr/bin/python
"""Documentation of the action host_examine, which runs on a host."""

DOCUMENTATION = r"""
module: host_examine
short_description: Examine a host for the doctor
description:
  - >-
    Collects facts about a host: interpreter, framework, GPUs, disks, clock, names, limits, other
    jobs. Nothing is changed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  python:
    description: The interpreter that runs scripts.
    type: str
    required: true
  framework:
    description: The framework of scripts, as in C(train_job_framework).
    type: str
    choices: [tensorflow, jax, torch, none]
    default: tensorflow
  port:
    description: The port of the host's rank.
    type: int
    required: true
  lease_dir:
    description: The folder on the host in which all users' ports and GPUs are leased.
    type: str
    required: true
  addresses:
    description: Names and addresses of all hosts, which this host must be able to resolve.
    type: list
    elements: str
    required: true
  full:
    description: Whether to import the framework and to measure the write rate.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Examine a host for the doctor
  tensorflow_ansible.cluster.host_examine:
    root: ~/train
    python: ~/train/venv/bin/python
    port: 12345
    lease_dir: /var/tmp/train-leases
    addresses:
      - node-1
      - node-2
    full: true
"""

RETURN = r"""
checkup:
  description: The facts.
  returned: success
  type: dict
"""
