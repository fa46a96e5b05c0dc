"""Add a rank of a machine as an inventory host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import machine_ranks


class ActionModule(GangAction):
    """Add a rank of a machine as an inventory host."""

    decide = staticmethod(machine_ranks.add)
