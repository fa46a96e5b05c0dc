#!/usr/bin/python
"""Documentation of the action gang_restart, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_restart
short_description: Wait until the next attempt of a job is due
description:
  - >-
    Waits for the delay between attempts and, after an attempt that could not start, for lost
    hosts to return. A stop on any host ends the job.
options:
  run_dir:
    description: The job's folder on the control node.
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
  before:
    description: >-
      The result of the most recent of the actions M(tensorflow_ansible.cluster.gang_result),
      M(tensorflow_ansible.cluster.gang_restart) and M(tensorflow_ansible.cluster.gang_refusal).
    type: dict
    required: true
  replaced:
    description: The result of M(tensorflow_ansible.cluster.gang_replace), if it ran.
    type: dict
    default: {}
  controller:
    description: >-
      The inventory host that watches the job and is given the time to start the attempt first;
      empty for none.
    type: str
    default: ''
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
- name: Wait until the next attempt of a job is due
  tensorflow_ansible.cluster.gang_restart:
    run_dir: runs/digits-1
    groups: '{{ train_job_groups }}'
    lost_hosts: []
    before: '{{ next }}'
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
grows:
  description: Whether the previous attempt was ended so that more hosts can join.
  returned: success
  type: bool
without:
  description: Why hosts are excluded that could not join a job that should have grown, by host.
  returned: success
  type: dict
result:
  description: The content of C(result.json), if the job has ended.
  returned: success
  type: dict
"""
