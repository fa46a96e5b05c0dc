"""Examine a host for the doctor."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang import connections, suitability_check
from train.gang.connections import Args, Returned


class ActionModule(HostAction):
    """Examine a host for the doctor."""

    logs_in = True

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Examine the host, including the requirements of the set-up there."""
        play = connections.Play(self, task_vars)
        needs = suitability_check.needs(play, str(task_vars["inventory_hostname"]))
        return self.call(options, task_vars, suitability=needs.request)
