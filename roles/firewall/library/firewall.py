#!/usr/bin/python
"""Ansible module: an nftables table that keeps strangers off TensorFlow's ports.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall
short_description: Let only members of the cluster open connections to TensorFlow's ports
description:
  - Keeps a table of its own, C(inet train), in nftables. Nothing else of the host's rules is read,
    changed or flushed.
  - New rules hold for C(confirm_timeout) seconds. Then the host takes them back by itself, unless
    Ansible has confirmed them over a new connection. Only rules that were confirmed are written
    where the next start of the host loads them. V(present) does this in one task, by the action
    plugin of the same name.
options:
  state:
    description:
      - V(look) compares and changes nothing, V(present) makes what differs, V(absent) removes all
        that the module brought. V(applied) and V(confirmed) are the halves of V(present).
    type: str
    choices: [look, present, applied, confirmed, absent]
    default: present
  members:
    description:
      - The cluster's machines, each a list of names and addresses. Names are looked up on the host.
        At least one of each list must have an address.
    type: list
    elements: list
    default: []
  sources:
    description: Addresses, networks and names that may connect as well.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports and ranges (V(20000-20010)).
    type: list
    elements: str
    default: []
  confirm_timeout:
    description: Seconds after which rules that were not confirmed are taken back.
    type: int
    default: 30
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Keep strangers off port 12345
  firewall:
    members: [[192.0.2.11], [node-2.lab, 192.0.2.12]]
    ports: ["12345"]
"""

RETURN = r"""
ready:
  description: Whether nothing differs.
  type: bool
  returned: success
differences:
  description: What differs, each in a few words.
  type: list
  elements: str
  returned: success
  sample: ["the table inet train is not loaded"]
installed:
  description: Whether nft is there.
  type: bool
  returned: success
family:
  description: V(debian), V(redhat) or empty for others.
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.firewall_setup.nft import warnings_of
from ansible.module_utils.firewall_setup.programs import FirewallError
from ansible.module_utils.firewall_setup.rules import Firewall, remove_all


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "choices": ["look", "present", "applied", "confirmed", "absent"],
                "default": "present",
            },
            "members": {"type": "list", "elements": "list", "default": []},
            "sources": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "str", "default": []},
            "confirm_timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    state = module.params["state"]
    try:
        if state == "absent":
            module.exit_json(**remove_all(module.check_mode))
        firewall = Firewall(module.params)
        if state == "look":
            module.exit_json(**firewall.look())
        if state == "applied":
            result = firewall.apply(module.check_mode)
            for text in warnings_of(firewall.nft) if result["changed"] and firewall.nft else []:
                module.warn(text)
            module.exit_json(**result)
        if state == "confirmed" and not module.check_mode:
            module.exit_json(**firewall.confirm())
        if state == "confirmed":
            module.exit_json(changed=True)
        module.fail_json(msg="state present is the action plugin's, which is not in action_plugins")
    except FirewallError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become, on a disk with space" % error)


if __name__ == "__main__":
    main()
