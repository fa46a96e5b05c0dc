#!/usr/bin/python
"""Documentation of the action gang_variables, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_variables
short_description: Check the variables of a job
description:
  - >-
    Checks the role's variables on all hosts and fails with all problems, each with the place
    where the variable is set.
options:
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  script:
    description: The training script, or the folder that contains it.
    type: raw
    required: true
  module:
    description: The module to run instead of a script; empty for a script.
    type: raw
    required: true
  include:
    description: Folders and files that the script imports.
    type: raw
    required: true
  framework:
    description: The framework of the script. A later attempt has that of the first.
    type: raw
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
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Check the variables of a job
  tensorflow_ansible.cluster.gang_variables:
    groups: '{{ train_job_groups }}'
    script: examples/mnist-fit/main.py
    module: ''
    include: []
    framework: tensorflow
    attempt: 1
    job: ''
    runs_dir: runs
"""

RETURN = r"""
ranks:
  description: By host, the script's RV(ranks.arguments) and the names in its environment.
  returned: success
  type: dict
environment_names:
  description: Names in the script's environment on any host.
  returned: success
  type: list
  elements: raw
environment_differs:
  description: Names whose values differ between hosts.
  returned: success
  type: list
  elements: raw
modules:
  description: Modules that the script imports from packages.
  returned: success
  type: list
  elements: raw
framework:
  description: The framework of the job.
  returned: success
  type: str
beside:
  description: >-
    For each host, all names of its machine in this play. Hosts with the same connection share a
    machine.
  returned: success
  type: dict
"""
