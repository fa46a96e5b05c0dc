"""Write the result of an attempt."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang.watch import watching


class ActionModule(ObservingAction):
    """Write the result of an attempt."""

    _supports_check_mode = False
    decide = staticmethod(watching.report)
