"""Lock the packages that scripts will need on machines."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import script_packages


class ActionModule(GangAction):
    """Lock the packages that scripts will need on machines."""

    decide = staticmethod(script_packages.lock_packages_of_machines)
