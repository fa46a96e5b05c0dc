#!/usr/bin/python
"""Documentation of the action gang_controller, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_controller
short_description: Prepare what a host of the cluster needs to watch a job
description:
  - >-
    Packs this project and the script, and writes an inventory for an inventory host that is to
    start and watch a job. The files are in Ansible's local temporary folder, and only their owner
    can read them. Role C(controller) sends them.
  - >-
    The inventory contains the variables of the role and those that decide how hosts are reached,
    with their templates and Vault values resolved. Their values are marked as data. Passwords,
    keys and options of ssh are left out.
options:
  controller:
    description: The inventory host that is to watch the job, or C(chief) for the first one.
    type: str
    required: true
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  command:
    description: The command to run on the host.
    type: str
    choices: [run, attach, restart]
    required: true
  job:
    description: The job's id.
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
  include:
    description: Folders and files to copy next to the script.
    type: raw
    required: true
  exclude:
    description: Patterns of files of the script's folder to leave out.
    type: list
    elements: str
    required: true
  requirements:
    description: The file that lists the script's packages; empty for none.
    type: str
    required: true
  code_limit_mb:
    description: Maximum size of the script's files, in MiB.
    type: float
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Prepare the files for the host that watches the job
  tensorflow_ansible.cluster.gang_controller:
    controller: node-1
    groups: '{{ train_job_groups }}'
    command: run
    job: digits-1
    script: examples/mnist-fit/main.py
    module: ''
    include: []
    exclude: []
    requirements: ''
    code_limit_mb: 100
"""

RETURN = r"""
host:
  description: The inventory host that is to watch the job.
  returned: success
  type: str
root:
  description: The folder of jobs on this host.
  returned: success
  type: str
version:
  description: A hash of the project and its packages.
  returned: success
  type: str
project:
  description: The archive of the project.
  returned: success
  type: str
lock:
  description: The path and the SHA-256 of the lock of the packages.
  returned: success
  type: dict
inventory:
  description: The inventory for the host.
  returned: success
  type: str
code:
  description: The archive of the script's files; empty for the project's own script.
  returned: success
  type: str
requirements:
  description: The files that list the script's packages, by their names on the host.
  returned: success
  type: dict
words:
  description: Options of the command that starts the job.
  returned: success
  type: list
  elements: str
"""
