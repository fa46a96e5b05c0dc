#!/usr/bin/python
"""Documentation of the action gang_replace, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_replace
short_description: Replace hosts that a job has lost, with a command of the user
description:
  - >-
    Runs the command in the variable C(train_job_replace) if the last attempt has lost hosts, and
    the other hosts are not enough. Waits before that until hosts that got a notice of preemption
    have ended. A stop on any host ends the command. If the command fails, the task does not.
options:
  run_dir:
    description: The job's folder on the control node. The output of the command is stored there.
    type: str
    required: true
  groups:
    description: The inventory hosts of each task type.
    type: dict
    required: true
  lost_hosts:
    description: Hosts that did not answer at the end of the last attempt.
    type: list
    elements: str
    required: true
  leaving:
    description: >-
      When hosts that got a notice of preemption can be replaced, by host, as
      M(tensorflow_ansible.cluster.gang_watch) returns it.
    type: dict
    required: true
  before:
    description: >-
      The result of the most recent of the actions M(tensorflow_ansible.cluster.gang_result) and
      M(tensorflow_ansible.cluster.gang_refusal). After the latter, the command runs for hosts that
      could not be reached, unless it has already run for this attempt.
    type: dict
    required: true
  controller:
    description: >-
      The inventory host that watches the job; empty for none. Unless it is lost, nothing is
      replaced here.
    type: str
    default: ''
  timeout:
    description: Seconds after which the command is ended.
    type: float
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Replace lost hosts
  tensorflow_ansible.cluster.gang_replace:
    run_dir: runs/digits-1
    groups: '{{ train_job_groups }}'
    lost_hosts: [node-2]
    leaving: {}
    before: '{{ next }}'
    timeout: 1800
"""

RETURN = r"""
outcome:
  description: C(replaced), C(failed), or an empty string if the command did not run.
  returned: success
  type: str
stopped:
  description: How the job was stopped meanwhile; an empty string if it was not.
  returned: success
  type: str
hosts:
  description: Hosts for which the action M(tensorflow_ansible.cluster.gang_update_host) is due.
  returned: success
  type: list
  elements: str
ranks:
  description: The further ranks of these hosts, for M(tensorflow_ansible.cluster.gang_add_rank).
  returned: success
  type: list
  elements: dict
"""
