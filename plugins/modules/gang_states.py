#!/usr/bin/python
"""Documentation of the action gang_states, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_states
short_description: Report the states of a job's ranks
description:
  - >-
    Reports the phase, the progress and the last line of the log of each rank of a job. Nothing is
    changed.
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
      variables of each host: C(root), the folder that contains C(jobs/).
    type: str
    required: true
  job:
    description: The job's id; empty for the newest job of each host.
    type: str
    required: true
  manifest:
    description: Whether to return the job's description as well.
    type: bool
    default: false
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Report the states of a job's ranks
  tensorflow_ansible.cluster.gang_states:
    options: my_folders
    job: digits-1
  register: states
  run_once: true
"""

RETURN = r"""
hosts:
  description: >-
    The result for each inventory host. C(rank) is its rank or null, C(state) its phase, exit code,
    reason and times, C(progress) the last values that the script reported, C(last_line) that of the
    log, C(manifest) the job's description, and C(more) has the same for further ranks of the host's
    machine. If the host could not be asked, C(unreachable) or C(failed) is set, with the reason as
    C(msg).
  returned: success
  type: dict
lines:
  description: A line about each rank.
  returned: success
  type: list
  elements: raw
"""
