#!/usr/bin/python
"""Ansible module: an nftables table that restricts access to TensorFlow's ports.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall
short_description: Let only members of the cluster open connections to TensorFlow's ports
description:
  - Manages a separate nftables table, C(inet train). The host's other rules are not changed or
    flushed.
  - New rules are reverted by the host after C(confirm_timeout) seconds unless they were confirmed
    with O(state=confirmed) in a task that runs over a new connection. Only confirmed rules are
    stored in C(/etc/train-firewall/rules.nft).
  - Warns if firewalld, ufw or another chain of the host blocks connections that this table accepts.
options:
  state:
    description:
      - V(present) loads the rules, if they differ, with a timer that reverts them.
      - V(confirmed) stops the timer and keeps the rules.
      - V(absent) removes the table, the timer and C(/etc/train-firewall).
    type: str
    choices: [present, confirmed, absent]
    default: present
  members:
    description:
      - The cluster's machines, each a list of names and addresses. Names are resolved on the host.
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
    description: TCP ports and ranges (V(20000-20010)) to protect.
    type: list
    elements: str
    default: []
  confirm_timeout:
    description: Seconds after which rules that were not confirmed are reverted, 2 or more.
    type: int
    default: 60
  token:
    description: Identifies the rules to confirm; returned with V(present).
    type: str
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Let only members connect to port 12345
  tensorflow_ansible.cluster.firewall:
    members: [[192.0.2.11], [node-2.lab, 192.0.2.12]]
    ports: ["12345"]
  register: rules

- name: Open a new connection
  ansible.builtin.wait_for_connection:
    timeout: 30

- name: Keep the rules
  tensorflow_ansible.cluster.firewall:
    state: confirmed
    token: "{{ rules.token }}"
  when: rules.token | length > 0
"""

RETURN = r"""
differences:
  description: Short descriptions of the differences.
  type: list
  elements: str
  returned: with O(state=present)
  sample: ["the table inet train is not loaded"]
token:
  description: The O(token) for O(state=confirmed); empty if no rules were loaded.
  type: str
  returned: with O(state=present)
"""

import shutil

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.firewall_setup import (
    rules,
    table,
)
from ..module_utils.firewall_setup.others import (
    warnings_of,
)


def present(module: AnsibleModule, nft: str) -> None:
    """Load the rules if they differ, and exit the module."""
    params = module.params
    if params["confirm_timeout"] < 2:
        module.fail_json(msg="confirm_timeout is %d: use 2 or more" % params["confirm_timeout"])
    ports = rules.parse_ports(params["ports"])
    networks = rules.find_networks(params["members"], params["sources"])
    text = rules.rules_text(networks, ports)
    differences, diff = table.compare(nft, text)
    for warning in warnings_of(nft, networks, ports):
        module.warn(warning)
    token = ""
    if differences:
        token = table.apply(nft, text, params["confirm_timeout"], module.check_mode)
    module.exit_json(changed=bool(differences), differences=differences, token=token, diff=diff)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["present", "confirmed", "absent"], "default": "present"},
            "members": {"type": "list", "elements": "list", "default": []},
            "sources": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "str", "default": []},
            "confirm_timeout": {"type": "int", "default": 60},
            "token": {"type": "str", "no_log": False},
        },
        required_if=[("state", "confirmed", ["token"])],
        supports_check_mode=True,
    )
    nft = shutil.which("nft", path=table.SEARCH_PATH) or ""
    try:
        if module.params["state"] == "absent":
            module.exit_json(changed=table.remove_all(nft, module.check_mode))
        if module.params["state"] == "present":
            present(module, nft)
        if not module.check_mode:
            table.confirm(nft, module.params["token"], module.params["confirm_timeout"])
        module.exit_json(changed=True)
    except rules.FirewallError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become, and check the free disk space" % error)


if __name__ == "__main__":
    main()
