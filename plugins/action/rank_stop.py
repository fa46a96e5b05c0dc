"""End every process of a rank and verify that."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """End every process of a rank and verify that."""

    logs_in = True
