"""Choose the ranks of hosts that have several."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import machine_ranks


class ActionModule(GangAction):
    """Choose the ranks of hosts that have several."""

    decide = staticmethod(machine_ranks.choose)
