"""Check the variables of a job."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import planning


class ActionModule(GangAction):
    """Check the variables of a job."""

    decide = staticmethod(planning.check_variables)
