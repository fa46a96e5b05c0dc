#!/usr/bin/python
"""Documentation of the action gang_refusal, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_refusal
short_description: Decide what follows an attempt that could not start
description:
  - >-
    Decides whether to follow an attempt that another control node has started, to wait for hosts to
    return, or to end the job as stopped or failed.
options:
  run_dir:
    description: The job's folder on the control node.
    type: str
    required: true
  tried:
    description: The result of M(tensorflow_ansible.cluster.gang_restart).
    type: dict
    required: true
  gang_steps:
    description: >-
      The variables in which the results of the start's tasks for the gang are registered, in order.
      The first failure is reported as the reason.
    type: list
    elements: str
    required: true
  checks:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_check) is registered, to
      find hosts that were unreachable.
    type: str
    required: true
  host_steps:
    description: >-
      The variables in which the results of the start's tasks on hosts are registered, for the same
      purpose.
    type: list
    elements: str
    required: true
  metrics_dir:
    description: The folder for metrics in Prometheus' text format; empty for none.
    type: str
    default: ''
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Decide what follows an attempt that could not start
  tensorflow_ansible.cluster.gang_refusal:
    run_dir: runs/digits-1
    tried: '{{ next }}'
    gang_steps:
      - plan
      - ready
    checks: checks
    host_steps:
      - staged
"""

RETURN = r"""
job:
  description: The job's id.
  returned: success
  type: str
then:
  description: The role's next task file.
  returned: success
  type: str
attempt:
  description: The number of the next attempt.
  returned: success
  type: int
min_workers:
  description: The smallest number of workers to start the attempt with; 0 for all.
  returned: success
  type: int
without:
  description: Why hosts are excluded that could not join a job that should have grown, by host.
  returned: success
  type: dict
result:
  description: The content of C(result.json), if the job has ended.
  returned: success
  type: dict
"""
