"""The nodes of the surrounding batch job as an inventory: Slurm, PBS or LSF."""

from __future__ import annotations

import os
from typing import Any

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

from train.gang import allocations, host_slots
from train.gang.errors import UserError

DOCUMENTATION = """
name: slurm
short_description: The nodes of the surrounding batch job of Slurm, PBS or LSF
description:
  - Makes each task of the batch job a rank, an inventory host of the group C(worker).
  - The source is a file whose name ends in C(slurm.yml), C(pbs.yml) or C(lsf.yml).
  - For Slurm, it reads C(SLURM_JOB_NODELIST), C(SLURM_TASKS_PER_NODE), C(SLURM_JOB_GPUS) and
    C(SLURM_GPUS_ON_NODE), and runs C(scontrol) if it exists.
  - For PBS, it reads C(PBS_NODEFILE), and for LSF C(LSB_DJOB_HOSTFILE), C(LSB_MCPU_HOSTS) or
    C(LSB_HOSTS).
  - The ports of the ranks depend on the id of the batch job, so that jobs can share a node.
options:
  plugin:
    description: The name of this plugin, C(tensorflow_ansible.cluster.slurm).
    required: true
    choices: [tensorflow_ansible.cluster.slurm, slurm]
  system:
    description: The batch system.
    type: str
    choices: [slurm, pbs, lsf]
    default: slurm
"""
EXAMPLES = """
# lab.slurm.yml. For PBS, the file is lab.pbs.yml, and ends with "system: pbs".
plugin: tensorflow_ansible.cluster.slurm
"""


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    """Reads the allocation of the surrounding batch job."""

    NAME = "tensorflow_ansible.cluster.slurm"

    def verify_file(self, path: str) -> bool:
        """Return whether a source is a configuration of this plugin."""
        return path.endswith(tuple(f"{system}.yml" for system in allocations.SYSTEMS))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the ranks of the allocation."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        try:
            allocation = allocations.read(self.get_option("system"), os.environ)
            host_slots.add_ranks(self.inventory, allocation.hosts)
        except UserError as error:
            raise AnsibleParserError(str(error)) from error
