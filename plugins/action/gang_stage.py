"""Make the ranks of an attempt ready to start."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import starting


class ActionModule(GangAction):
    """Make the ranks of an attempt ready to start."""

    _supports_check_mode = False
    decide = staticmethod(starting.stage)
