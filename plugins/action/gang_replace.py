"""Replace hosts that a job has lost, with a command of the user."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang import replacing


class ActionModule(ObservingAction):
    """Replace hosts that a job has lost, with a command of the user."""

    _supports_check_mode = False
    decide = staticmethod(replacing.replace)
