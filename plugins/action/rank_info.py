"""Report the state of a job's ranks on a host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Report the state of a job's ranks on a host."""

    logs_in = True
