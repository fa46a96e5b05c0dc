"""Lock the packages of a job's script."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.packages import of_gang


class ActionModule(GangAction):
    """Lock the packages of a job's script."""

    decide = staticmethod(of_gang.lock_packages)
