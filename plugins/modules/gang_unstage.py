#!/usr/bin/python
"""Documentation of the action gang_unstage, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_unstage
short_description: Withdraw an attempt that cannot start
description:
  - >-
    Undoes M(tensorflow_ansible.cluster.gang_stage) for all ranks: releases ports and GPUs, and
    removes the ranks' folders or restores them to their state after the previous attempt.
  - Always fails, so that the play ends.
options:
  manifest:
    description: The job's description, as in C(job.json).
    type: dict
    required: true
  run_dir:
    description: The job's folder on the control node.
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
- name: Withdraw an attempt that cannot start
  tensorflow_ansible.cluster.gang_unstage:
    manifest: '{{ gang.manifest }}'
    run_dir: runs/digits-1
  run_once: true
"""

RETURN = r"""
{}
"""
