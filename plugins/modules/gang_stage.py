#!/usr/bin/python
"""Documentation of the action gang_stage, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_stage
short_description: Make the ranks of an attempt ready to start
description:
  - >-
    Leases the port and GPUs of each rank and fills its folder on its host: the code,
    C(tf_config.json), its specification and the launcher. All machines are called in parallel, each
    with one command for all of its ranks.
  - >-
    If a step fails for a rank, all of them are undone for it. A later attempt of a job ends
    remaining processes of the previous one and keeps checkpoints, model and events.
  - Ranks that are not ready do not fail the task, see M(tensorflow_ansible.cluster.gang_ready).
options:
  hosts:
    description: The inventory hosts of the attempt.
    type: list
    elements: str
    required: true
  options:
    description: >-
      The name of the variable with what the rank of an inventory host gets. It is rendered with the
      variables of each host: C(root), the folder on the host that contains C(jobs/); C(tf_config),
      its C(TF_CONFIG); and C(lease_dir), the folder on the host in which all users' ports and GPUs
      are leased.
    type: str
    required: true
  template:
    description: >-
      The template of C(rank.json), the description of a rank for its supervisor. It is rendered
      with the variables of each host.
    type: path
    required: true
  beside:
    description: >-
      All names of each host's machine in the play, see
      M(tensorflow_ansible.cluster.gang_variables).
    type: dict
    required: true
  archive:
    description: The code archive on the control node.
    type: str
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
- name: Make the ranks of an attempt ready to start
  tensorflow_ansible.cluster.gang_stage:
    hosts: '{{ gang.hosts }}'
    options: my_rank
    template: '{{ role_path }}/templates/rank.json.j2'
    beside: '{{ variables.beside }}'
    archive: runs/digits-1/code.tar.gz
    manifest: '{{ gang.manifest }}'
    readable_by: owner
  register: staged
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    The result for each inventory host: the C(rank), with its folders, interpreter and port; whether
    another control node has C(overtaken) this one with the same attempt; how the job was
    C(stopped), if it was; C(failed) or C(unreachable), with the reason as C(msg).
  returned: success
  type: dict
warnings:
  description: Warnings that do not prevent the start.
  returned: success
  type: list
  elements: raw
"""
