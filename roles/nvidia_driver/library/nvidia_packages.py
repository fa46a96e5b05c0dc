#!/usr/bin/python
"""Ansible module: chooses the packages of the NVIDIA driver that a host can install.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_packages
short_description: Choose the packages of the NVIDIA driver that a host can install
description:
  - Asks the package manager's lists, which must be fresh, and changes nothing.
  - Takes the packages for computing and leaves those for a display out.
  - Refuses a driver that is too old for TensorFlow or for a GPU, a kernel whose headers the archive
    has no longer, and what the distribution does not have, each with its remedy.
options:
  host:
    description: C(host) of M(nvidia_look).
    type: dict
    required: true
  gpus:
    description: C(gpus) of M(nvidia_look).
    type: list
    elements: dict
    required: true
  minimum:
    description: The oldest driver that will do.
    type: str
    required: true
  source:
    description: Whose packages to take.
    type: str
    choices: [distribution, nvidia]
    required: true
  flavour:
    description:
      - Which kernel module. V(auto) takes the open one where every GPU and the driver can do it.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  branch:
    description: Driver branch, such as V(580). Empty for the newest that the GPUs can use.
    type: str
    default: ""
  packages:
    description: Packages to take in place of the module's choice.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reports a change where something is to be installed, also without fresh lists.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Choose the driver's packages
  nvidia_packages:
    host: "{{ nvidia_driver_facts.host }}"
    gpus: "{{ nvidia_driver_facts.gpus }}"
    minimum: 525.60.13
    source: distribution
  register: choice
"""

RETURN = r"""
packages:
  description: What to install.
  type: list
  elements: str
  returned: success
missing:
  description: Those of them that are not installed.
  type: list
  elements: str
  returned: success
stream:
  description: The stream of the dnf module nvidia-driver to enable; empty for none.
  type: str
  returned: success
version:
  description: The driver's version as far as the lists tell it.
  type: str
  returned: success
signed:
  description: Whether the distribution has signed the kernel module, so that Secure Boot loads it.
  type: bool
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.nvidia_setup.choice import choose
from ansible.module_utils.nvidia_setup.fit import Choice, PackageError, Wanted
from ansible.module_utils.nvidia_setup.installed import missing
from ansible.module_utils.nvidia_setup.package_lists import (
    apt_candidates,
    apt_names,
    dnf_candidates,
)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "dict", "required": True},
            "gpus": {"type": "list", "elements": "dict", "required": True},
            "minimum": {"type": "str", "required": True},
            "source": {"type": "str", "choices": ["distribution", "nvidia"], "required": True},
            "flavour": {
                "type": "str",
                "choices": ["auto", "open", "proprietary"],
                "default": "auto",
            },
            "branch": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = params["host"]
    wanted = Wanted(params["minimum"], params["source"], params["flavour"], params["branch"])
    ask = dnf_candidates if host["family"] == "redhat" else apt_candidates
    try:
        if params["packages"]:
            choice = Choice(params["packages"], "", True)
        else:
            choice = choose(host, params["gpus"], wanted, ask, apt_names)
    except PackageError as error:
        if not module.check_mode:
            module.fail_json(msg=str(error))
        # The sources that a real run would have brought may be what is missing.
        module.warn("Before its sources are there, no driver can be chosen: %s" % error)
        choice = Choice([], "", True)
    absent = missing(choice.packages, host["family"])
    module.exit_json(
        # Nothing is installed here; in check mode nothing else says what a real run would install.
        changed=module.check_mode and bool(absent),
        diff={"prepared": "".join("+ %s\n" % name for name in absent)},
        packages=choice.packages,
        missing=absent,
        stream=choice.stream,
        version=choice.version,
        signed=not choice.built,
    )


if __name__ == "__main__":
    main()
