"""Choose the hosts of an attempt."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import choosing


class ActionModule(GangAction):
    """Choose the hosts of an attempt."""

    decide = staticmethod(choosing.choose_hosts)
