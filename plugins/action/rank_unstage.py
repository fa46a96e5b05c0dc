"""Release the resources of a rank that has not started."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Release the resources of a rank that has not started."""

    _supports_check_mode = False
