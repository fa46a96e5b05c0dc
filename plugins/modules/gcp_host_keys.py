#!/usr/bin/python
"""Ansible module: the SSH host keys of Google Cloud instances, from the Compute Engine API."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gcp_host_keys
short_description: Return the SSH host keys of Google Cloud instances
description:
  - An instance with C(enable-guest-attributes) in its metadata publishes its host keys at its first
    start. They are read from there, over the authenticated API and not over SSH.
  - Waits until all instances have published a key. Changes nothing.
requirements:
  - google-auth
  - requests
options:
  instances:
    description: The instances.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      zone:
        description: Zone of the instance.
        type: str
        required: true
      id:
        description: Number of the instance, which no other instance ever gets.
        type: str
        required: true
  timeout:
    description: Seconds to wait for all instances.
    type: int
    default: 300
extends_documentation_fragment:
  - google.cloud.gcp
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Read the host keys
  tensorflow_ansible.cluster.gcp_host_keys:
    project: my-project
    auth_kind: application
    instances: [{name: worker-0, zone: europe-west2-a, id: "1234567890"}]
  register: published
"""

RETURN = r"""
host_keys:
  description:
    - Each has C(name) and C(id) of its instance, C(type), and C(line), for a known_hosts file.
  type: list
  elements: dict
  returned: success
"""

import base64
import binascii
import time

from ansible_collections.google.cloud.plugins.module_utils.gcp_utils import GcpModule
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.gcp_compute import Compute

TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
POLL_S = 2
LONGEST_KEY = 4096


def is_key(kind: str, value: str) -> bool:
    """Return whether a published value is a public key of the type ``kind``."""
    if len(value) > LONGEST_KEY:
        return False
    try:
        blob = base64.b64decode(value, validate=True)
    except binascii.Error:
        return False
    name = kind.encode()
    return blob[: 4 + len(name)] == len(name).to_bytes(4, "big") + name


def published(compute: Compute, instance: dict[str, str]) -> dict[str, str]:
    """Return the valid host keys that an instance has published, by type."""
    path = f"zones/{instance['zone']}/instances/{instance['name']}/getGuestAttributes"
    answer = compute.get(path, queryPath="hostkeys/") or {}
    items = (answer.get("queryValue") or {}).get("items") or []
    keys = {str(item.get("key")): str(item.get("value")).strip() for item in items}
    return {kind: keys[kind] for kind in TYPES if kind in keys and is_key(kind, keys[kind])}


def main() -> None:
    member = {name: {"type": "str", "required": True} for name in ("name", "zone", "id")}
    module = GcpModule(
        argument_spec={
            "instances": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": member,
            },
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    compute = Compute(module)
    deadline = time.monotonic() + module.params["timeout"]
    waiting = list(module.params["instances"])
    keys: list[dict[str, str]] = []
    while True:
        missing = []
        for instance in waiting:
            found = published(compute, instance)
            keys += [
                {
                    "name": instance["name"],
                    "id": instance["id"],
                    "type": kind,
                    "line": f"gcp-{instance['id']} {kind} {value}",
                }
                for kind, value in found.items()
            ]
            if not found:
                missing.append(instance)
        waiting = missing
        if not waiting:
            break
        if time.monotonic() > deadline:
            names = ", ".join(instance["name"] for instance in waiting)
            module.fail_json(
                msg=f"{names} published no SSH host key within {module.params['timeout']} s. Run "
                "again if the instance is still starting. An image without Google's guest agent "
                "publishes none: choose another gcp_instances_image_family. `gcloud compute "
                "instances get-serial-port-output` shows how far an instance has started."
            )
        time.sleep(POLL_S)
    module.exit_json(changed=False, host_keys=keys)


if __name__ == "__main__":
    main()
