"""Remove the folders of ended jobs on a host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Remove the folders of ended jobs on a host."""
