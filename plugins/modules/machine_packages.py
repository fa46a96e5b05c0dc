#!/usr/bin/python
"""Documentation of the action machine_packages, which runs on the control node."""

DOCUMENTATION = r"""
module: machine_packages
short_description: Lock the packages that scripts will need on machines
description:
  - >-
    Locks packages during the set-up of machines, as M(tensorflow_ansible.cluster.gang_packages)
    does for a job, so that later jobs find their packages installed.
options:
  machines:
    description: The inventory hosts.
    type: list
    elements: str
    required: true
  python:
    description: The interpreter of the environment.
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
  registered:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.environment_info) are
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
- name: Lock the packages that scripts will need on machines
  tensorflow_ansible.cluster.machine_packages:
    machines: '{{ ansible_play_hosts }}'
    python: ~/train/venv/bin/python
    script: main.py
    module: ''
    requirements: requirements.txt
    playbook_dir: '{{ playbook_dir }}'
    registered: described
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
"""
