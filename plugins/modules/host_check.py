#!/usr/bin/python
"""Documentation of the action host_check, which runs on a host."""

DOCUMENTATION = r"""
module: host_check
short_description: Check whether a rank can start on a host
description:
  - >-
    Checks disk space, the interpreter, the port and the GPUs of a rank, and reports what the plan
    needs to know about the host.
  - Fails with the reason if a rank cannot start. Nothing is changed.
options:
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id; empty if it is not chosen yet.
    type: str
    required: true
  beside:
    description: >-
      All names of this host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_neighbors).
    type: list
    elements: str
    default: []
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  python:
    description: The interpreter that runs the script.
    type: str
    required: true
  framework:
    description: The framework of the script, as in C(train_job_framework).
    type: str
    choices: [tensorflow, jax, torch, none]
    required: true
  address:
    description: The address at which other ranks reach this one; empty for the host's own.
    type: str
    required: true
  port:
    description: The port of the rank. Omit it if the rank does not listen on a port.
    type: int
  min_free_mb:
    description: MiB that must be free in O(root).
    type: float
    required: true
  modules:
    description: Modules that the script imports from packages.
    type: list
    elements: str
    default: []
  gpus:
    description: >-
      The GPUs of the rank, as in C(train_job_gpus). If omitted, the script's environment decides.
    type: raw
  lease_dir:
    description: The folder on the host in which all users' ports and GPUs are leased.
    type: str
    required: true
  wait:
    description: >-
      Seconds to wait for other jobs. With 0, resources that other jobs hold are an error.
    type: float
    required: true
  foreign_gpu:
    description: How to react to a process that does not belong to a job but uses a GPU of the rank.
    type: str
    choices: [refuse, warn, ignore]
    required: true
  preemption:
    description: Where the host learns that it will be reclaimed, as in C(train_job_preemption).
    type: str
    default: 'off'
  avoids_preempted:
    description: >-
      Whether the job does not use a host that it has left because of a notice of preemption.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Check whether a rank can start on a host
  tensorflow_ansible.cluster.host_check:
    root: ~/train
    job: ''
    attempt: 1
    python: ~/train/venv/bin/python
    framework: tensorflow
    address: ''
    port: 12345
    min_free_mb: 1024
    lease_dir: /var/tmp/train-leases
    wait: 0
    foreign_gpu: refuse
"""

RETURN = r"""
host:
  description: Facts about the host for the plan.
  returned: success
  type: dict
lacks_framework:
  description: Whether the interpreter does not find the framework; false if that is unknown.
  returned: success
  type: bool
ranks:
  description: Ranks of an earlier attempt on this host.
  returned: success
  type: list
  elements: raw
warnings:
  description: Warnings that do not prevent the start.
  returned: success
  type: list
  elements: raw
"""
