"""Return the addresses that hosts use to reach each other."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.doctor import examine


class ActionModule(GangAction):
    """Return the addresses that hosts use to reach each other."""

    decide = staticmethod(examine.addresses)
