#!/usr/bin/python
"""Documentation of the action gang_watch, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_watch
short_description: Follow the ranks of a gang until it has ended
description:
  - >-
    Polls all hosts over separate connections for logs, progress and state, shows progress, and
    stores logs and progress in the job's folder.
  - >-
    Ends when the gang has ended, or when there is evidence that it cannot continue. An error in
    this action ends the watch but not the job.
options:
  hosts:
    description: The hosts of the attempt.
    type: list
    elements: str
    required: true
  ranks:
    description: >-
      Ranks that M(tensorflow_ansible.cluster.gang_find) has found. If omitted, the ranks that
      M(tensorflow_ansible.cluster.gang_stage) returned.
    type: list
    elements: dict
  staged:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.gang_stage) are
      registered.
    type: str
    required: true
  started:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.gang_start) are
      registered.
    type: str
    required: true
  run_dir:
    description: The job's folder on the control node.
    type: str
    required: true
  start_timeout:
    description: Seconds for a rank to report that it has started.
    type: float
    required: true
  unreachable_timeout:
    description: Seconds that a host may be unreachable.
    type: float
    required: true
  interval:
    description: Minimum seconds between two updates of a rank.
    type: float
    required: true
  log_limit_mb:
    description: MiB of each rank's log to keep on the control node.
    type: float
    required: true
  start_wait_timeout:
    description: >-
      Seconds that a rank with an open port waits for active ranks that have not opened theirs; 0
      for no limit.
    type: float
    required: true
  non_training_exit_timeout:
    description: Seconds to wait for non-training tasks after the training has completed.
    type: float
    required: true
  grace:
    description: Seconds that a rank has to end after SIGTERM.
    type: float
    required: true
  straggler_factor:
    description: How many times slower than the others a rank may be before it is reported.
    type: float
    required: true
  disconnected_timeout:
    description: >-
      Seconds without a connection to any host after which the watch ends; 0 for no limit.
    type: float
    required: true
  groups:
    description: The hosts of each task type, and spare hosts, as in C(train_job_groups).
    type: dict
    required: true
  without:
    description: Hosts that this attempt could not start with, which are not awaited.
    type: dict
    default: {}
  grow:
    description: >-
      Whether the attempt ends once missing hosts can join again: V(auto), if the job has
      written a checkpoint; V(always); or V(never).
    type: str
    choices: [auto, always, never]
    default: never
  grow_check:
    description: Seconds between two checks of a missing host.
    type: float
    default: 60
  grow_interval:
    description: >-
      The shortest time in seconds from the start of the watch until the attempt ends to grow, and
      from then on until the expected end of the job.
    type: float
    default: 600
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
- name: Follow the ranks of a gang until it has ended
  tensorflow_ansible.cluster.gang_watch:
    hosts: '{{ gang.hosts }}'
    run_dir: '{{ gang.run_dir }}'
    start_timeout: 120
    unreachable_timeout: 60
    interval: 1
    log_limit_mb: 64
    staged: staged
    started: started
    start_wait_timeout: 600
    non_training_exit_timeout: 60
    grace: 10
    straggler_factor: 1.5
    disconnected_timeout: 60
    groups:
      worker: [node-1, node-2]
"""

RETURN = r"""
state:
  description: V(completed), V(failed) or V(stopped); the last one also if the job
    grows, or leaves a host that will be reclaimed.
  returned: success
  type: str
message:
  description: The outcome as readable text.
  returned: success
  type: str
lost_hosts:
  description: Hosts that do not answer.
  returned: success
  type: list
  elements: raw
gone_hosts:
  description: Those of them that are not asked to stop their ranks, because they would not answer.
  returned: success
  type: list
  elements: raw
leaving:
  description: When hosts that got a notice of preemption can be replaced, by host.
  returned: success
  type: dict
running:
  description: Whether some ranks have not ended.
  returned: success
  type: bool
grace:
  description: Seconds that the ranks have to end; null for the usual time.
  returned: success
  type: float
"""
