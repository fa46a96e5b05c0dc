#!/usr/bin/python
"""Documentation of the action gang_logs, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_logs
short_description: Fetch logs and progress records of a gang
description:
  - Fetches logs and progress records, once or while they grow, without judging the ranks.
options:
  ranks:
    description: The ranks of M(tensorflow_ansible.cluster.job_ranks).
    type: list
    elements: dict
    required: true
  follow:
    description: Whether to continue until the ranks have ended.
    type: bool
    default: false
  run_dir:
    description: The folder for the logs on the control node.
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
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
    details: Logs are fetched even in check mode, because nothing changes on hosts.
author: The maintainers
"""

EXAMPLES = r"""
- name: Fetch logs and progress records of a gang
  tensorflow_ansible.cluster.gang_logs:
    ranks: '{{ ranks }}'
    run_dir: logs
    start_timeout: 120
    unreachable_timeout: 60
    interval: 1
    log_limit_mb: 64
"""

RETURN = r"""
phases:
  description: The last phase of each rank.
  returned: success
  type: dict
lost:
  description: Why some ranks were not followed to their end.
  returned: success
  type: dict
"""
