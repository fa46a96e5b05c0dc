"""Start the ranks of an attempt in the background."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import starting


class ActionModule(GangAction):
    """Start the ranks of an attempt in the background."""

    _supports_check_mode = False
    decide = staticmethod(starting.start)
