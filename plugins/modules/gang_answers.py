#!/usr/bin/python
"""Documentation of the action gang_answers, which runs on the control node."""

DOCUMENTATION = r"""
module: gang_answers
short_description: Require that all hosts have answered
description:
  - >-
    Fails if a host could not be reached, or could not do what an earlier task asked of it. This is
    a separate task, so that the answers of the other hosts can be shown first.
options:
  registered:
    description: >-
      The variable in which the result of M(tensorflow_ansible.cluster.gang_states),
      M(tensorflow_ansible.cluster.gang_jobs) or M(tensorflow_ansible.cluster.gang_stop) is
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
- name: Require that all hosts have answered
  tensorflow_ansible.cluster.gang_answers:
    registered: states
  run_once: true
"""

RETURN = r"""
hosts:
  description: The results of the hosts that did not answer.
  returned: failure
  type: dict
"""
