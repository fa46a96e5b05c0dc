#!/usr/bin/python
"""Documentation of the action gang_jobs, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_jobs
short_description: List the jobs of all hosts
description:
  - >-
    Lists the jobs that have a folder on the hosts, with their ranks, and the ports and GPUs that
    all users have leased. Nothing is changed.
  - >-
    All machines are asked in parallel, each with one command for all of its inventory hosts. The
    login to a machine is checked first. One that takes long is named, and one that hangs is ended.
  - >-
    Hosts that cannot be reached do not fail the task: see
    M(tensorflow_ansible.cluster.gang_answers).
options:
  options:
    description: >-
      The name of the variable with the parameters of an inventory host, rendered with the
      variables of each host: C(root), the folder that contains C(jobs/), and C(lease_dir).
    type: str
    required: true
  job:
    description: List only this job.
    type: str
  lines:
    description: Report where the last O(lines) lines of each log begin.
    type: int
  sizes:
    description: Whether to report the size of each job's folder.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: List the jobs of all hosts
  tensorflow_ansible.cluster.gang_jobs:
    options: my_folders
    sizes: true
  register: listing
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    The result for each inventory host. C(jobs) are its jobs, and C(leases) descriptions of who has
    leased which port or GPU. If another inventory host of its machine has the same folders,
    C(listed_by) is that host's name instead. If the host could not be asked, C(unreachable) or
    C(failed) is set, with the reason as C(msg).
  returned: success
  type: dict
"""
