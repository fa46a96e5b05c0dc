#!/usr/bin/python
"""Ansible module: a host's own part in the SSH logins of a cluster.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_keys
short_description: A host's own part in the SSH logins of a cluster
description:
  - Makes the user's key of the cluster, tells the public half, and writes what the host has to know
    of the others. The private half stays on the host.
  - Everything lies in C(~/.ssh/NAME/), but for one line in C(~/.ssh/config) and one line a key in
    C(~/.ssh/authorized_keys). All other lines of these files are left as they are.
  - Files are written beside their place and renamed, so none is ever seen half-written.
  - Started by root through C(sudo), it works as the user who called C(sudo), unless O(user) says
    otherwise; it gives up root's rights before it looks at anything.
options:
  state:
    description:
      - V(look) tells what is there and changes nothing; one such call tells all there is to know of
        a host that is ready.
      - V(keys) makes the key if there is none, and with O(rekey) the next one beside it.
      - V(known) tells what the host's files hold about the hosts O(wanted), and changes nothing.
      - V(written) writes O(content).
      - V(switched) puts the next key in the place of the current one, in one step. The next
        V(written) takes it out of its old place; a login that has begun with one of two keys can so
        end with the other.
      - V(absent) takes away what the module wrote, with O(keys) the key as well.
    type: str
    choices: [look, keys, known, written, switched, absent]
    default: look
  name:
    description: Name of the cluster, of its folder and of its lines.
    type: str
    required: true
  user:
    description: The user whose logins these are. Empty for the one who logged in.
    type: str
    default: ""
  host_keys:
    description: Pattern of the files that hold the host's public keys.
    type: str
    default: /etc/ssh/ssh_host_*_key.pub
  resolve:
    description:
      - Names of this host. Where they are no addresses, the host looks up their addresses.
    type: list
    elements: str
    default: []
  rekey:
    description: Whether a new key is wanted beside the one that is there.
    type: bool
    default: false
  wanted:
    description: Inventory names of the hosts to tell about.
    type: list
    elements: str
    default: []
  content:
    description:
      - C(authorized_keys) (the cluster's lines), C(known_hosts) and C(config) (whole files),
        C(hosts) (what they were made from, as JSON) and C(written) (when, in seconds since 1970).
    type: dict
    default: {}
  keys:
    description: Whether the key is taken away as well.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details: Tells which hosts come and go.
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at keys and files
  ssh_keys:
    name: train-cluster
  register: look
"""

RETURN = r"""
user:
  description: The user whose logins these are.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
key:
  description: The public key of this host; empty if there is none yet.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
next:
  description: The public key that is to follow; empty where none is.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
host_keys:
  description: The public keys of the host itself, type and text.
  type: list
  elements: str
  returned: O(state) is V(look), V(keys) or V(switched)
addresses:
  description: What the names in O(resolve) that are no addresses stand for.
  type: list
  elements: str
  returned: O(state) is V(look), V(keys) or V(switched)
digests:
  description: SHA-256 of each managed part, and what is wrong with modes.
  type: dict
  returned: O(state) is V(look), V(keys) or V(switched)
written:
  description: When the managed files were made, in seconds since 1970; 0 if there are none.
  type: int
  returned: O(state) is V(look), V(keys), V(switched) or V(known)
hosts:
  description: What the files hold about the hosts O(wanted).
  type: list
  elements: dict
  returned: O(state) is V(known)
differences:
  description: The parts that were, or in check mode would be, written.
  type: list
  elements: str
  returned: O(state) is V(written)
removed:
  description: What was taken away.
  type: list
  elements: str
  returned: O(state) is V(absent)
left:
  description: What was left.
  type: list
  elements: str
  returned: O(state) is V(absent)
"""

import os
import re
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.ssh_setup import states
from ansible.module_utils.ssh_setup.files import ProblemError
from ansible.module_utils.ssh_setup.place import Place
from ansible.module_utils.ssh_setup.user import find_user, working_as

#: A folder in ~/.ssh, and none of the files that ssh and sshd have there.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
TAKEN = ("config", "environment", "rc")


def run(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        ProblemError: what cannot be done, with the remedy.
        OSError: a file cannot be read or written.
    """
    params = module.params
    os.umask(0o077)
    if not NAME.match(params["name"]) or params["name"] in TAKEN:
        raise ProblemError(
            "ssh_keys_name is %r: use lower-case letters, digits and dashes, and none of %s"
            % (params["name"], ", ".join(TAKEN))
        )
    # In check mode, the user may be one that would have been made by now.
    user = find_user(params["user"], not module.check_mode and params["state"] != "absent")
    # A home that does not exist has no files.
    place = Place(user.pw_dir if user else "/nonexistent", params["name"])
    name = user.pw_name if user else params["user"]
    result: Dict[str, Any]
    with working_as(user):
        if params["state"] == "known":
            result = states.run_known(module, place)
        elif params["state"] == "written":
            result = states.run_written(module, place)
        elif params["state"] == "absent":
            result = states.run_absent(module, place)
        else:
            work = {
                "look": states.run_look,
                "keys": states.run_keys,
                "switched": states.run_switched,
            }
            result = work[params["state"]](module, place, name)
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["look", "keys", "known", "written", "switched", "absent"],
                "default": "look",
            },
            "name": {"type": "str", "required": True},
            "user": {"type": "str", "default": ""},
            "host_keys": {"type": "str", "default": "/etc/ssh/ssh_host_*_key.pub"},
            "resolve": {"type": "list", "elements": "str", "default": []},
            "rekey": {"type": "bool", "default": False, "no_log": False},
            "wanted": {"type": "list", "elements": "str", "default": []},
            "content": {"type": "dict", "default": {}},
            "keys": {"type": "bool", "default": False, "no_log": False},
        },
        supports_check_mode=True,
    )
    # The texts grow with the cluster; nobody reads them in a result.
    shown = {key: value for key, value in module.params.items() if key != "content"}
    try:
        module.exit_json(invocation={"module_args": shown}, **run(module))
    except ProblemError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: mend this, then run the role again" % error)


if __name__ == "__main__":
    main()
