#!/usr/bin/python
"""Documentation of the action machine_suitability, which runs on the control node."""

DOCUMENTATION = r"""
module: machine_suitability
short_description: Decide whether a framework can be installed on machines
description:
  - >-
    Compares the results of M(tensorflow_ansible.cluster.host_suitability) with the requirements of
    the roles that C(playbooks/setup.yml) will run.
options:
  members:
    description: The machines, as in C(playbooks/machines.yml).
    type: list
    elements: dict
    required: true
  run_tags:
    description: The tags of the run.
    type: list
    elements: str
    required: true
  skip_tags:
    description: The skipped tags of the run.
    type: list
    elements: str
    required: true
  registered:
    description: >-
      The variable in which the results of M(tensorflow_ansible.cluster.host_suitability) are
      registered.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Decide whether a framework can be installed on machines
  tensorflow_ansible.cluster.machine_suitability:
    members: '{{ train_job_machines }}'
    run_tags: '{{ ansible_run_tags }}'
    skip_tags: '{{ ansible_skip_tags }}'
    registered: suitability
"""

RETURN = r"""
unsuited:
  description: The faults of each host that cannot be set up.
  returned: success
  type: dict
lines:
  description: Each fault with its hosts.
  returned: success
  type: list
  elements: raw
left_out:
  description: The same, plus unreachable hosts.
  returned: success
  type: list
  elements: raw
"""
