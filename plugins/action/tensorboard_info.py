"""Find a host's event files and a free port for TensorBoard."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Find a host's event files and a free port for TensorBoard."""
