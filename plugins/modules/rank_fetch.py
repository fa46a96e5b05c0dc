#!/usr/bin/python
"""Documentation of the action rank_fetch, which runs on a host."""

DOCUMENTATION = r"""
module: rank_fetch
short_description: Fetch results of a rank
description:
  - >-
    Packs folders of the rank, or files of its working directory, and unpacks them in the job's
    folder on the control node.
  - Errors do not fail the task, because the results can be fetched again.
options:
  rank_dir:
    description: The rank's folder on the host.
    type: str
    required: true
  run_dir:
    description: The job's folder on the control node.
    type: str
    required: true
  folders:
    description: Names of folders to fetch, such as V(model).
    type: list
    elements: str
  globs:
    description: Patterns of files of the working directory to fetch into C(collected/TASK).
    type: list
    elements: str
  task:
    description: The rank's task type and index, for O(globs).
    type: str
  limit_mb:
    description: Maximum size in MiB of all files together.
    type: float
    required: true
  limit_files:
    description: Maximum number of files.
    type: int
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Fetch results of a rank
  tensorflow_ansible.cluster.rank_fetch:
    rank_dir: '{{ staged.rank.rank_dir }}'
    run_dir: runs/digits-1
    folders:
      - model
    limit_mb: 10240
    limit_files: 10000
"""

RETURN = r"""
error:
  description: Why nothing was fetched; empty on success and if there is nothing to fetch.
  returned: success
  type: str
"""
