"""Host lists with slots as an inventory: each slot of a host is a rank with its own port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

from train.gang import host_slots
from train.gang.errors import UserError

DOCUMENTATION = """
name: host_slots
short_description: Host lists with slots, as MPI and DeepSpeed write them
description:
  - Makes each slot of a host a rank, an inventory host of the group C(worker).
  - The source is a list on the command line in which at least one host has C(slots=), or a file
    whose name ends in C(host_slots.yml) or C(host_slots.yaml) and which names a host file.
  - A host with one slot keeps its name. The ranks of a host with several slots are called
    C(node-1-slot-0), C(node-1-slot-1) and so on, and have C(train_job_port) 12345, 12346 and so on,
    or C(port) and the ports after it.
options:
  plugin:
    description: The name of this plugin, C(tensorflow_ansible.cluster.host_slots).
    required: true
    choices: [tensorflow_ansible.cluster.host_slots, host_slots]
  hostfile:
    description: Path of the host file; a relative path begins at the folder of the configuration.
    type: str
    required: true
"""
EXAMPLES = """
# On the command line:
#   ansible-playbook -i 'node-1 slots=4,node-2 slots=2 user=train port=20000,' playbooks/train.yml

# cluster.host_slots.yml
plugin: tensorflow_ansible.cluster.host_slots
hostfile: /etc/openmpi/hosts
"""


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    """Reads a host list."""

    NAME = "tensorflow_ansible.cluster.host_slots"

    def verify_file(self, path: str) -> bool:
        """Return whether a source is a host list with slots, or a configuration of this plugin."""
        is_config = path.endswith(("host_slots.yml", "host_slots.yaml"))
        return host_slots.is_source(path) or (is_config and os.access(path, os.R_OK))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the ranks of the list."""
        super().parse(inventory, loader, path, cache)
        try:
            if host_slots.is_source(path):
                hosts = host_slots.parse_list(path)
            else:
                self._read_config_data(path)
                hostfile = Path(self.get_option("hostfile")).expanduser()
                hosts = host_slots.read_file(Path(path).parent / hostfile)
            host_slots.add_ranks(self.inventory, hosts)
        except (UserError, OSError) as error:
            raise AnsibleParserError(str(error)) from error
