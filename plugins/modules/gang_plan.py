#!/usr/bin/python
"""Documentation of the action gang_plan, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_plan
short_description: 'Plan an attempt: ranks, code archive and manifest'
description:
  - >-
    Gives each host its rank and GPUs, packs the script's folder, and writes the job's manifest
    into its folder on the control node. A later attempt keeps the code of the first.
options:
  placement:
    description: The result of M(tensorflow_ansible.cluster.gang_hosts).
    type: dict
    required: true
  tf_config:
    description: The rendered C(TF_CONFIG) of each host.
    type: dict
    required: true
  rank_environments:
    description: >-
      The variables by which each host's rank finds the others, without C(TF_CONFIG).
    type: dict
    required: true
  attempt:
    description: The number of the attempt, from 1.
    type: int
    required: true
  automatic:
    description: Whether the attempt follows a failed one without a user's command.
    type: bool
    default: false
  grown:
    description: Whether the previous attempt was ended so that more hosts can join.
    type: bool
    default: false
  script:
    description: The training script, or the folder that contains it.
    type: str
    required: true
  module:
    description: The module to run instead of a script; empty for a script.
    type: str
    required: true
  include:
    description: Folders and files that the script imports.
    type: raw
    required: true
  exclude:
    description: Patterns of files not to send.
    type: raw
    required: true
  packages:
    description: The packages of M(tensorflow_ansible.cluster.gang_packages).
    type: dict
  variables:
    description: The result of M(tensorflow_ansible.cluster.gang_variables).
    type: dict
    required: true
  job:
    description: The job's id; empty to choose one.
    type: str
    required: true
  runs_dir:
    description: The folder of results on the control node.
    type: str
    required: true
  code_limit_mb:
    description: Maximum size of the code in MiB.
    type: float
    required: true
  checkpoint_copy:
    description: Whether a worker on another machine also keeps the chief's checkpoints.
    type: bool
    required: true
  checkpoint_dir:
    description: The folder for checkpoints that all hosts share; empty for none.
    type: str
    required: true
  readable_by:
    description: Who may read the job's folder.
    type: str
    choices: [owner, all]
    required: true
  settings:
    description: >-
      Settings that are stored in the manifest: seed, framework, Keras version, timeouts and the
      restart policy.
    type: dict
    required: true
  checks:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_check) is registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
    details: In check mode, everything is checked and nothing is written.
author: The maintainers
"""

EXAMPLES = r"""
- name: 'Plan an attempt: ranks, code archive and manifest'
  tensorflow_ansible.cluster.gang_plan:
    placement: '{{ placement }}'
    tf_config: '{{ tf_config }}'
    rank_environments: '{{ rank_environments }}'
    attempt: 1
    script: main.py
    module: ''
    include: []
    exclude: []
    variables: '{{ variables }}'
    job: ''
    runs_dir: runs
    code_limit_mb: 100
    checkpoint_copy: true
    checkpoint_dir: ''
    readable_by: owner
    settings:
      seed: 0
      framework: tensorflow
      keras: 2
      start_timeout: 0
      max_runtime: 0
      policy:
        max_restarts: 3
        restart_delay: 5
        min_workers: 0
        host_wait: 600
    checks: checks
"""

RETURN = r"""
job:
  description: The job's id.
  returned: success
  type: str
attempt:
  description: The number of the attempt.
  returned: success
  type: int
run_dir:
  description: The job's folder on the control node.
  returned: success
  type: str
hosts:
  description: The hosts of the attempt, chief first.
  returned: success
  type: list
  elements: raw
archive:
  description: The code archive.
  returned: success
  type: str
ranks:
  description: The planned rank of each host.
  returned: success
  type: dict
rank_environments:
  description: The variables of each host's rank by which it finds the others.
  returned: success
  type: dict
visible_gpus:
  description: The values of each host's rank for C(CUDA_VISIBLE_DEVICES), or null.
  returned: success
  type: dict
manifest:
  description: The description of the job that each host keeps.
  returned: success
  type: dict
"""
