#!/usr/bin/python
"""Ansible module: the instances and firewall rules of a project that belong to a cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gcp_cluster_info
short_description: List a Google Cloud project's instances that belong to a cluster
description:
  - Lists instances of all zones in one request. M(google.cloud.gcp_compute_instance_info) lists
    those of one zone.
  - Changes nothing. Rejected credentials and projects are reported with a remedy.
requirements:
  - google-auth
  - requests
options:
  names:
    description: Names of further instances to list, whether they belong to a cluster or not.
    type: list
    elements: str
    default: []
  firewall_prefix:
    description: Start of the names of the firewall rules to list.
    type: str
    default: train-
extends_documentation_fragment:
  - google.cloud.gcp
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Find the instances
  tensorflow_ansible.cluster.gcp_cluster_info:
    project: my-project
    auth_kind: application
  register: found
"""

RETURN = r"""
instances:
  description:
    - Each has C(name), C(id), C(zone), C(state), C(machine_type), C(gpus) (list of C(type) and
      C(count)), C(labels), C(created), C(age_hours), C(private_address) and C(public_address), null
      without one.
    - C(deletion_protection) and C(shielded) are as M(google.cloud.gcp_compute_instance) takes them.
  type: list
  elements: dict
  returned: success
firewalls:
  description: Each has C(name), C(network) and C(sources), the addresses that it lets in.
  type: list
  elements: dict
  returned: success
"""

import datetime
from typing import Any

from ansible_collections.google.cloud.plugins.module_utils.gcp_utils import GcpModule
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.gcp_compute import Compute

LABEL = "train_cluster"
_SHIELDED = {
    "enable_secure_boot": "enableSecureBoot",
    "enable_vtpm": "enableVtpm",
    "enable_integrity_monitoring": "enableIntegrityMonitoring",
}


def last(link: str) -> str:
    """Return the name at the end of a resource's address."""
    return link.rpartition("/")[2]


def described(instance: dict[str, Any], now: datetime.datetime) -> dict[str, Any]:
    """Return the properties of an instance that the role needs."""
    interface = (instance.get("networkInterfaces") or [{}])[0]
    access = (interface.get("accessConfigs") or [{}])[0]
    created = instance.get("creationTimestamp", "")
    shielded = instance.get("shieldedInstanceConfig") or {}
    try:
        age = (now - datetime.datetime.fromisoformat(created)).total_seconds() / 3600
    except ValueError:
        age = 0.0
    return {
        "name": instance["name"],
        "id": str(instance["id"]),
        "zone": last(instance["zone"]),
        "state": instance["status"],
        "machine_type": last(instance["machineType"]),
        "gpus": [
            {"type": last(gpu["acceleratorType"]), "count": int(gpu["acceleratorCount"])}
            for gpu in instance.get("guestAccelerators", [])
        ],
        "labels": instance.get("labels", {}),
        "created": created,
        "age_hours": round(age, 1),
        "private_address": interface.get("networkIP"),
        "public_address": access.get("natIP"),
        "deletion_protection": instance.get("deletionProtection", False),
        "shielded": {ours: shielded.get(theirs) for ours, theirs in _SHIELDED.items()}
        if shielded
        else None,
    }


def main() -> None:
    module = GcpModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "default": []},
            "firewall_prefix": {"type": "str", "default": "train-"},
        },
        supports_check_mode=True,
    )
    compute = Compute(module)
    names = module.params["names"]
    wanted = [f"labels.{LABEL}:*", *(f"name={name}" for name in names)]
    query = " OR ".join(f"({condition})" for condition in wanted) if names else wanted[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    instances = [
        described(instance, now)
        for page in compute.list("aggregated/instances", query)
        for zone in (page.get("items") or {}).values()
        for instance in zone.get("instances", [])
    ]
    firewalls = [
        {
            "name": rule["name"],
            "network": last(rule["network"]),
            "sources": rule.get("sourceRanges", []),
        }
        for page in compute.list("global/firewalls", "")
        for rule in page.get("items", [])
        if rule["name"].startswith(module.params["firewall_prefix"])
    ]
    instances.sort(key=lambda instance: (instance["labels"].get(LABEL, ""), instance["name"]))
    module.exit_json(changed=False, instances=instances, firewalls=firewalls)


if __name__ == "__main__":
    main()
