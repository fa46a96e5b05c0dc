#!/usr/bin/python
"""Ansible module: tells in one call whether a host is as a role wants it.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_look
short_description: Tell in one call whether a host is as a role wants it
description:
  - Compares packages, services, files and folders with what is wanted and changes nothing. A role
    that finds its host ready skips its other tasks, each of which would cost as much as this one.
  - Runs under the host's Python alone, without a package manager's library.
options:
  packages:
    description:
      - Names of the packages that must be installed, by family (V(debian), V(redhat)). A host of
        another family has none of them.
    type: dict
    default: {}
  services:
    description: Names of systemd units that must be enabled and active.
    type: list
    elements: str
    default: []
  files:
    description:
      - Files that must be there. Each has C(path), and C(content) (the whole text), C(lines) (lines
        that it must have among others), C(mode) (such as V("0644")) and C(owner) as far as they
        matter. In C(path), V(~) is expanded.
    type: list
    elements: dict
    default: []
  folders:
    description:
      - Folders that must be there. Each has C(path), and C(mode) and C(owner). In C(path), V(~) is
        expanded.
    type: list
    elements: dict
    default: []
  user:
    description:
      - A user that must be there. Empty for the one that the module runs as. V({user}) in C(path)
        and C(owner) of O(files) and O(folders) stands for the name.
    type: str
    default: ""
  limits:
    description:
      - What logins of O(user) may have. C(path) is a file of C(/etc/security/limits.d), C(nofile) a
        number (0 leaves it alone), C(memlock) V(unlimited), a number of MB, or empty (leaves it
        alone).
      - A limit that this host cannot give (in most containers) is lowered to what it can, with a
        note. Some versions of PAM refuse a login whose limits they cannot set.
    type: dict
    default: {}
  mounts:
    description:
      - Filesystems that must be in C(/etc/fstab) and mounted, and answer. Each has C(path), C(src),
        C(fstype) and C(opts). Other lines of C(/etc/fstab) must not have the option
        C(x-train.host), not even if this list is empty.
    type: list
    elements: dict
  shm_mb:
    description: Least size of C(/dev/shm) in MB. 0 leaves it alone.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the clock
  host_look:
    packages: {debian: [chrony], redhat: [chrony]}
    services: [chrony]
    files:
      - path: /etc/chrony/sources.d/cluster.sources
        content: "{{ lookup('ansible.builtin.template', 'cluster.sources.j2') }}"
  register: look

- name: Set the clock up
  ansible.builtin.include_tasks: converge.yml
  when: not look.ready
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
  sample: ["package chrony is not installed"]
family:
  description: V(debian), V(redhat) or the C(ID) of C(/etc/os-release).
  type: str
  returned: success
distribution:
  description: C(ID) of C(/etc/os-release), such as V(debian), V(ubuntu) or V(rocky).
  type: str
  returned: success
release:
  description: C(VERSION_ID) of C(/etc/os-release), such as V(12) or V(24.04).
  type: str
  returned: success
systemd:
  description: Whether systemd runs the host.
  type: bool
  returned: success
user:
  description: Name of O(user), or of the user that the module runs as.
  type: str
  returned: success
limits_content:
  description: What the file of O(limits) must hold. Empty without O(limits).
  type: str
  returned: success
notes:
  description: What is not as wanted and cannot be changed on the host. They are warnings, too.
  type: list
  elements: str
  returned: success
"""

import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_setup.look import look


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "default": {}},
            "services": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "list", "elements": "dict", "default": []},
            "user": {"type": "str", "default": ""},
            "limits": {"type": "dict", "default": {}},
            "mounts": {"type": "list", "elements": "dict"},
            "shm_mb": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        result = look(module.params)
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)
    except ValueError as error:
        module.fail_json(msg=str(error))
    for note in result["notes"]:
        module.warn("%s: %s" % (socket.gethostname(), note))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
