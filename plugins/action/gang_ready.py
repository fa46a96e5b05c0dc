"""Require that every rank of an attempt is staged."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import starting


class ActionModule(GangAction):
    """Require that every rank of an attempt is staged."""

    _supports_check_mode = False
    decide = staticmethod(starting.require_staged)
