#!/usr/bin/python
"""Runs one of the launcher's calls on a host.

It does not import Ansible modules, which would take longer than the work. The launcher's programs
are sent with the arguments: one command for the host's interpreter, without files.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_call
short_description: Run one of the launcher's calls on a host
description: Runs a function of C(train/host/calls.py), which names all calls and their arguments.
options:
  call:
    description: The function.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    details: RV(stage), RV(collect) and RV(collect_files) are not called in check mode.
author: The maintainers
"""

EXAMPLES = r"""
- name: Check the rank
  host_call:
    call: state
    root: ~/train
    job: digits-1
    host: node-1
"""

RETURN = r"""
call:
  description: The function that was called.
  returned: always
  type: str
"""

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
