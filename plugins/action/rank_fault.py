"""Inject a fault of a drill into a rank."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Inject a fault of a drill into a rank."""

    _supports_check_mode = False
