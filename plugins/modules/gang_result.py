#!/usr/bin/python
"""Documentation of the action gang_result, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_result
short_description: Write the result of an attempt
description:
  - >-
    Fetches the rest of the logs and progress records, judges how the attempt ended, writes
    C(result.json) with the decision on a next attempt, and sends notifications.
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
  job:
    description: The job's id.
    type: str
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
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
  overtaken:
    description: Whether another control node has started this attempt.
    type: bool
    default: false
  metrics_dir:
    description: The folder for metrics in Prometheus' text format; empty for none.
    type: str
    default: ''
  strict:
    description: Whether doubts about a completed job are a failure.
    type: bool
    default: false
  fetch_error:
    description: Why the model was not fetched; empty if it was.
    type: str
    default: ''
  files:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.rank_fetch) for files of
      working directories are registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Write the result of an attempt
  tensorflow_ansible.cluster.gang_result:
    hosts: '{{ gang.hosts }}'
    job: digits-1
    attempt: 1
    run_dir: '{{ gang.run_dir }}'
    start_timeout: 120
    unreachable_timeout: 5
    interval: 0
    log_limit_mb: 64
    staged: staged
    started: started
    files: files
"""

RETURN = r"""
result:
  description: The content of C(result.json).
  returned: success
  type: dict
job:
  description: The job's id.
  returned: success
  type: str
then:
  description: 'The role''s next task file: V(restart.yml) or V(end.yml).'
  returned: success
  type: str
overtaken:
  description: The value of the option O(overtaken).
  returned: success
  type: bool
"""
