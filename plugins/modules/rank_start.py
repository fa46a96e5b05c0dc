#!/usr/bin/python
"""Documentation of the action rank_start, which runs on a host."""

DOCUMENTATION = r"""
module: rank_start
short_description: Start a rank in the background
description:
  - >-
    Starts the supervisor of a rank that M(tensorflow_ansible.cluster.rank_stage) has made ready.
    The supervisor starts the script and moves into the background, so the task ends as soon as the
    supervisor works.
  - >-
    M(ansible.builtin.command) with C(async) and C(poll: 0) would take 0.2 to 1 s more, and would
    not report a supervisor that did not start.
options:
  python:
    description: The host's own interpreter, which runs the supervisor.
    type: str
    required: true
  rank_dir:
    description: The rank's folder on the host.
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
- name: Start a rank in the background
  tensorflow_ansible.cluster.rank_start:
    python: '{{ staged.rank.host_python }}'
    rank_dir: '{{ staged.rank.rank_dir }}'
"""

RETURN = r"""
started:
  description: Whether the supervisor is running.
  returned: success
  type: bool
"""
