"""Examine whether TensorFlow can be installed on a host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang import suitability_check
from train.gang.connections import Args, Returned


class ActionModule(HostAction):
    """Examine whether TensorFlow can be installed on a host, which may have no Python."""

    logs_in = True

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Collect the facts with a shell and any Python."""
        return {"changed": False, **suitability_check.ask(self, task_vars)}
