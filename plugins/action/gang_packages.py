"""Lock the packages of a job's script."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import script_packages


class ActionModule(GangAction):
    """Lock the packages of a job's script."""

    decide = staticmethod(script_packages.lock_packages)
