"""Withdraw an attempt that cannot start."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import starting


class ActionModule(GangAction):
    """Withdraw an attempt that cannot start."""

    _supports_check_mode = False
    decide = staticmethod(starting.unstage)
