#!/usr/bin/python
"""Runs one of the launcher's programs on a host.

It does not import Ansible modules, which would take longer than the work. The launcher's programs
are sent with the arguments: one command for the host's interpreter, without files.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_program
short_description: Run one of the launcher's programs on a host
description:
  - Runs the programs of this collection's actions on hosts. In tasks, use the actions, which check
    their options.
options:
  call:
    description: The action whose program in C(train/host/calls.py) is run.
    type: str
    required: true
  launcher:
    description: The programs, as a zip archive in base64.
    type: str
    required: true
attributes:
  check_mode:
    description: Whether it can run without changing anything.
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Use one of the actions instead
  tensorflow_ansible.cluster.rank_info:
    root: ~/train
    job: digits-1
"""

RETURN = r"""{}"""

import base64
import json
import os
import sys

# Ansible puts the arguments here: <<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>
PARAMS = json.loads("<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>>")
_archive = os.memfd_create("launcher")
os.write(_archive, base64.b64decode(PARAMS["launcher"]))
sys.path.insert(0, "/proc/self/fd/%d" % _archive)

from train.host import calls

if __name__ == "__main__":
    calls.main({**PARAMS, "check": PARAMS["_ansible_check_mode"]})
