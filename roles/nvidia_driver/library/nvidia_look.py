#!/usr/bin/python
"""Ansible module: tells in one call what GPUs a host has, whether their driver is good, what to do.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_look
short_description: Tell what NVIDIA GPUs a host has and whether their driver is good
description:
  - Finds NVIDIA GPUs in the PCI listing of the kernel, so without a driver and without C(lspci).
  - Where there are some, looks at the driver that is loaded, at C(nvidia-smi), at the kernel module
    on the disk, at nouveau, Secure Boot, the kernel's headers, the persistence daemon and the fact
    file, and says what is left to do. Changes nothing.
  - A driver that is loaded, new enough and answers C(nvidia-smi) is good, wherever it came from.
options:
  minimum:
    description: The oldest driver that will do, such as V(525.60.13).
    type: str
    required: true
  pci_root:
    description: The kernel's listing of PCI devices.
    type: path
    default: /sys/bus/pci/devices
  persistence:
    description: Whether the persistence daemon has to run.
    type: bool
    default: true
  in_container:
    description:
      - What is wanted in a container, which cannot load a kernel module. V(leave) wants nothing
        there, V(packages) wants what can be installed.
    type: str
    choices: [leave, packages]
    default: leave
  packages:
    description: Packages that are wanted in a container.
    type: list
    elements: str
    default: []
  fact_path:
    description: The local fact of Ansible that tells of the GPUs.
    type: path
    default: /etc/ansible/facts.d/nvidia.fact
  blacklist_path:
    description: The file of modprobe that keeps nouveau from being loaded.
    type: path
    default: /etc/modprobe.d/nvidia-driver-nouveau.conf
  root:
    description: Folder that stands for C(/), for tests.
    type: path
    default: /
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the GPUs and their driver
  nvidia_look:
    minimum: 525.60.13
  register: nvidia_driver_facts

- name: Install the driver
  ansible.builtin.include_tasks: install.yml
  when: "'install' in nvidia_driver_facts.todo"
"""

RETURN = r"""
ready:
  description: Whether nothing is left to do.
  type: bool
  returned: success
todo:
  description:
    - What is left to do. V(install) the driver's packages, V(blacklist) nouveau, V(load) the
      driver's kernel module, V(reboot) the host, V(enrol) the key that signs the kernel module,
      V(persistence) start the persistence daemon, V(fact) write or remove the fact file.
  type: list
  elements: str
  returned: success
problems:
  description: What a human has to mend first, each with its remedy.
  type: list
  elements: str
  returned: success
notes:
  description: What the host's owner should know, each in one sentence.
  type: list
  elements: str
  returned: success
gpus:
  description:
    - The GPUs, by PCI address. Each has C(pci), C(device_id) and C(kernel_driver), and, where the
      driver answers, C(index), C(uuid), C(name), C(memory_mib), C(compute_capability), C(mig) and
      C(persistence); null where it does not tell.
  type: list
  elements: dict
  returned: success
driver:
  description: C(version) and C(open) of the loaded driver, null where none is loaded.
  type: dict
  returned: success
topology:
  description:
    - How GPUs and network cards hang together, as C(nvidia-smi topo -m) says. C(links), from device
      to device; C(cpu_affinity) and C(numa_affinity) of each GPU; C(nics), the cards' names. Null
      where the driver does not answer.
  type: dict
  returned: success
fact:
  description: What the fact file should hold; empty where it should not be there.
  type: str
  returned: success
host:
  description:
    - What the choice of packages depends on. C(family), C(distribution), C(release), C(codename),
      C(machine), C(kernel), C(headers), C(container), C(module_version), C(nouveau),
      C(blacklisted), C(secure_boot), C(interrupted), C(epel) and C(module_stream).
  type: dict
  returned: success
sources:
  description:
    - For hosts with apt. C(uris), the addresses that are configured; C(archive), where the
      distribution's own archive is, with C(uri), C(suites), C(components) and C(signed_by).
  type: dict
  returned: success
persistence:
  description:
    - The unit of the persistence daemon. C(found), C(active), C(enabled), and C(exec_start), a
      command in place of the unit's own where that one turns persistence mode off.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.nvidia_setup.look import look


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "minimum": {"type": "str", "required": True},
            "pci_root": {"type": "path", "default": "/sys/bus/pci/devices"},
            "persistence": {"type": "bool", "default": True},
            "in_container": {
                "type": "str",
                "choices": ["leave", "packages"],
                "default": "leave",
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "fact_path": {"type": "path", "default": "/etc/ansible/facts.d/nvidia.fact"},
            "blacklist_path": {
                "type": "path",
                "default": "/etc/modprobe.d/nvidia-driver-nouveau.conf",
            },
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module.params))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
