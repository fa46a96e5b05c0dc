"""Run TensorBoard on a host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Run TensorBoard on a host."""

    _supports_check_mode = False
