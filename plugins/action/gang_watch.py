"""Follow the ranks of a gang until it has ended."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang.watch import watching


class ActionModule(ObservingAction):
    """Follow the ranks of a gang until it has ended."""

    _supports_check_mode = False
    decide = staticmethod(watching.follow_gang)
