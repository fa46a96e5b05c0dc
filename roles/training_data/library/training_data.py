#!/usr/bin/python
"""Ansible module: the host's half of bringing training data.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: training_data
short_description: Have training data on a host, verified by hash
description:
  - Brings folders, archives and known data sets from the control node to C(ROOT/DEST), once. The
    action plugin of the same name reads the sources and sends what is missing; this module looks,
    plans, verifies, unpacks and puts in place.
  - Data lie beside their place until they are complete and verified; then one rename puts them
    there. What a broken run has sent is used by the next one.
  - Files that others put into the folder stay.
options:
  root:
    description: Folder of all data on the host. C(~) is expanded there.
    type: path
    required: true
  entries:
    description:
      - The data. Each has C(name); one of C(src), a folder or file on the control node, and
        C(mounted), a folder on the host that is mounted there; and as needed C(dataset), C(sha256),
        C(dest), C(unpack) and C(keras). The action plugin replaces them by what it found.
    type: list
    elements: dict
    default: []
  verify:
    description: Whether data that are there are read and compared with their hashes.
    type: bool
    default: false
  step:
    description:
      - What to do. V(look) compares and has the action plugin bring what is missing, for which it
        uses V(plan) and V(take). V(remove) removes all files that were ever brought into O(root).
    type: str
    choices: [look, plan, take, remove]
    default: look
  manifest:
    description: File on the host that tells what to bring. Set by the action plugin.
    type: path
  batch:
    description: Numbers of the files that came, in O(manifest). Set by the action plugin.
    type: list
    elements: int
    default: []
  last:
    description: Whether all files are there now. Set by the action plugin.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reads the sources, compares, counts what would be sent, and changes nothing.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Bring a folder and an archive
  training_data:
    root: ~/train/data
    entries:
      - name: digits
        src: /srv/digits
      - name: cifar-10
        src: /srv/archives/cifar-10-python.tar.gz
        dataset: cifar-10-python
"""

RETURN = r"""
paths:
  description: Where each of the data lies on the host, by name.
  type: dict
  returned: success
  sample: {digits: /home/train/train/data/digits}
left:
  description: Folders that have files of others, which were not removed.
  type: list
  elements: str
  returned: when O(step=remove)
brought:
  description: What was brought (in check mode, would be), each with what of it was sent.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the entry.
      type: str
      returned: always
    bytes:
      description: Size of what was missing on the host.
      type: int
      returned: always
    sent:
      description: Bytes sent. Less than C(bytes) where a broken run had sent some.
      type: int
      returned: always
"""

import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.data_setup import looking, planning, removing, taking
from ansible.module_utils.data_setup.places import STATE, DataError, read_manifest


def run(params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        DataError: with what is wrong.
        OSError: a file cannot be read or written.
    """
    root = os.path.abspath(os.path.expanduser(params["root"]))
    result: Dict[str, Any]
    if params["step"] == "remove":
        result = removing.remove_all(root, check_mode)
    elif params["step"] == "plan":
        manifest = read_manifest(params["manifest"])
        result = planning.plan(manifest, root, params["verify"], check_mode)
    elif params["step"] == "take":
        manifest = read_manifest(params["manifest"])
        result = taking.take(manifest, root, params["batch"], params["last"])
    else:
        found = looking.look(params["entries"], root, params["verify"], check_mode)
        result = {"found": found}
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "entries": {"type": "list", "elements": "dict", "default": []},
            "verify": {"type": "bool", "default": False},
            "step": {
                "type": "str",
                "choices": ["look", "plan", "take", "remove"],
                "default": "look",
            },
            "manifest": {"type": "path"},
            "batch": {"type": "list", "elements": "int", "default": []},
            "last": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**{"changed": False, **run(module.params, module.check_mode)})
    except DataError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg="%s. What has come stays under %s and is used by the next run: free space or mend"
            " what the message names, and run again."
            % (error, os.path.join(module.params["root"], STATE))
        )


if __name__ == "__main__":
    main()
