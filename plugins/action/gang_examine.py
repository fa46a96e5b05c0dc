"""Measure the paths between hosts and evaluate the results."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.doctor import examine


class ActionModule(GangAction):
    """Measure the paths between hosts and evaluate the results."""

    decide = staticmethod(examine.doctor)
