#!/usr/bin/python
"""Documentation of the action gang_check, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_check
short_description: Check whether ranks can start on their hosts
description:
  - >-
    Checks disk space, the interpreter, the port and the GPUs of each rank, and reports what the
    plan needs to know about its host. Nothing is changed.
  - >-
    All machines are asked in parallel, each with one command for all of its ranks. The login to a
    machine is checked first. One that takes long is named, and one that hangs is ended.
  - >-
    Hosts that cannot be reached, or on which a rank cannot start, do not fail the task: see
    M(tensorflow_ansible.cluster.gang_hosts).
options:
  options:
    description: >-
      The name of the variable with what to check for the rank of an inventory host. It is rendered
      with the variables of each host: C(root), C(python), C(address), C(port) (if the rank listens
      on one), C(min_free_mb), C(gpus) (unless the script's environment decides), C(lease_dir),
      C(foreign_gpu) and C(preemption), as the variables of the role train_job with these names.
    type: str
    required: true
  beside:
    description: >-
      All names of each host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_variables).
    type: dict
    required: true
  job:
    description: The job's id; empty if it is not chosen yet.
    type: str
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  framework:
    description: The framework of the script, as in C(train_job_framework).
    type: str
    choices: [tensorflow, jax, torch, none]
    required: true
  modules:
    description: Modules that the script imports from packages.
    type: list
    elements: str
    default: []
  wait:
    description: >-
      Seconds to wait for other jobs. With 0, resources that other jobs hold are an error.
    type: float
    required: true
  avoids_preempted:
    description: >-
      Whether the job does not use hosts that it has left because of a notice of preemption.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Check whether ranks can start on their hosts
  tensorflow_ansible.cluster.gang_check:
    options: my_options
    beside: '{{ variables.beside }}'
    job: ''
    attempt: 1
    framework: tensorflow
    wait: 0
  register: checks
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    The result for each inventory host. C(host) has facts for the plan, C(lacks_framework) whether
    the interpreter does not find the framework (false if that is unknown), C(ranks) the ranks of an
    earlier attempt, C(warnings) what does not prevent the start. C(unreachable) or C(failed), with
    the reason as C(msg), are set if a rank cannot start.
  returned: success
  type: dict
warnings:
  description: The warnings of all hosts.
  returned: success
  type: list
  elements: raw
"""
