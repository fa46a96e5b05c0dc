#!/usr/bin/python
"""Documentation of the action gang_stop, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_stop
short_description: End every process of a job's ranks and verify that
description:
  - >-
    On each host, sends SIGTERM, waits for a grace period, sends SIGKILL, and verifies that no
    process is left, that the port is free and that the GPUs' memory is released.
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
      variables of each host: C(root), the folder that contains C(jobs/), C(grace), the
      seconds between SIGTERM and SIGKILL, and C(lease_dir), to release the leases of ranks that
      have not started.
    type: str
    required: true
  hosts:
    description: The inventory hosts; by default those of the play.
    type: list
    elements: str
  job:
    description: The job's id.
    type: str
    required: true
  reason:
    description: Why the ranks are stopped, as text after a rank's name.
    type: str
    required: true
  permanent:
    description: Whether to prevent later attempts of the job.
    type: bool
    default: false
  attempt:
    description: Leave ranks of later attempts running.
    type: int
  retries:
    description: >-
      How often to try again, after a short pause, to reach a host that has not rejected the login.
    type: int
    default: 0
  warn:
    description: Whether to warn of ranks that may still be running.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: End every process of a job's ranks and verify that
  tensorflow_ansible.cluster.gang_stop:
    options: my_stop
    job: digits-1
    reason: was stopped by hand
    permanent: true
  register: stopped
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    The result for each inventory host. C(stop_report) has the processes that were found and those
    that remain, and C(more) the same for further ranks of the host's machine. If any part of a rank
    remains, or the host could not be asked, C(failed) or C(unreachable) is set, with the reason as
    C(msg).
  returned: success
  type: dict
lines:
  description: A line about each rank.
  returned: success
  type: list
  elements: raw
warnings:
  description: The hosts whose ranks may still be running, with O(warn).
  returned: success
  type: list
  elements: raw
"""
