"""Wait for other jobs and lease a gang's ports and GPUs."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import starting


class ActionModule(GangAction):
    """Wait for other jobs and lease a gang's ports and GPUs."""

    _supports_check_mode = False
    decide = staticmethod(starting.lease)
