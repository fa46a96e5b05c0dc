#!/usr/bin/python
"""Documentation of the action gang_packages, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_packages
short_description: Lock the packages of a job's script
description:
  - >-
    Resolves the script's requirements within the locked framework for the hosts' Python
    versions, and finds the hosts that lack them. A later attempt uses the job's lock.
options:
  hosts:
    description: The hosts of the attempt.
    type: list
    elements: str
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  job:
    description: The job's id; empty if it is not chosen yet.
    type: str
    required: true
  runs_dir:
    description: The folder of results on the control node.
    type: str
    required: true
  script:
    description: The training script, or the folder that contains it.
    type: str
    required: true
  module:
    description: The module to run instead of a script; empty for a script.
    type: str
    required: true
  requirements:
    description: The script's requirements, as in C(train_job_requirements).
    type: str
    required: true
  playbook_dir:
    description: The folder to which a relative O(tensorflow_requirements) refers.
    type: str
    required: true
  tensorflow_requirements:
    description: The lock of the hosts' environment, if it is not the role's own.
    type: str
  send_wheels:
    description: Whether to send the wheels to the hosts, because they have no network.
    type: bool
    default: false
  checks:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_check) is registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Lock the packages of a job's script
  tensorflow_ansible.cluster.gang_packages:
    hosts: '{{ placement.hosts }}'
    attempt: 1
    job: ''
    runs_dir: runs
    script: main.py
    module: ''
    requirements: auto
    playbook_dir: '{{ playbook_dir }}'
    checks: checks
"""

RETURN = r"""
packages:
  description: The lock and its name; null if nothing is to be installed.
  returned: success
  type: dict
installs:
  description: >-
    By host that lacks the packages, the C(root), C(framework) and C(variant) of its environment.
  returned: success
  type: dict
warnings:
  description: Modules that hosts are known to lack.
  returned: success
  type: list
  elements: raw
"""
