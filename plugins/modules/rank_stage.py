#!/usr/bin/python
"""Documentation of the action rank_stage, which runs on a host."""

DOCUMENTATION = r"""
module: rank_stage
short_description: Make a rank ready to start
description:
  - >-
    Leases the rank's port and GPUs and fills its folder on the host: the code, C(tf_config.json),
    its specification and the launcher.
  - >-
    If a step fails, all of them are undone. A later attempt of a job ends remaining processes of
    the previous one and keeps checkpoints, model and events.
options:
  archive:
    description: The code archive on the control node.
    type: str
    required: true
  root:
    description: The folder on the host that contains C(jobs/).
    type: str
    required: true
  tf_config:
    description: The rank's C(TF_CONFIG).
    type: str
    required: true
  spec:
    description: The rank's specification, the content of C(rank.json).
    type: json
    required: true
  manifest:
    description: The job's description, the content of C(job.json).
    type: json
    required: true
  readable_by:
    description: Who may read the job's folder.
    type: str
    choices: [owner, all]
    required: true
  lease_dir:
    description: The folder on the host in which all users' ports and GPUs are leased.
    type: str
    required: true
  force:
    description: Whether to start a job that was stopped permanently.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: none
    details: The task is skipped in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Make a rank ready to start
  tensorflow_ansible.cluster.rank_stage:
    archive: runs/digits-1/code.tar.gz
    root: ~/train
    tf_config: '{{ tf_config[inventory_hostname] }}'
    spec: '{{ lookup(''ansible.builtin.template'', ''rank.json.j2'') }}'
    manifest: '{{ gang.manifest }}'
    readable_by: owner
    lease_dir: /var/tmp/train-leases
"""

RETURN = r"""
rank:
  description: The rank, with its folders, interpreter and port.
  returned: success
  type: dict
warnings:
  description: Warnings that do not prevent the start.
  returned: success
  type: list
  elements: raw
overtaken:
  description: Whether another control node has started this attempt.
  returned: success
  type: bool
stopped:
  description: How the job was stopped, if it was.
  returned: success
  type: str
"""
