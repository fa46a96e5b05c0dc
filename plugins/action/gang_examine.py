"""Measure the paths between hosts and judge what was found."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.doctor import examine


class ActionModule(GangAction):
    """Measure the paths between hosts and judge what was found."""

    decide = staticmethod(examine.doctor)
