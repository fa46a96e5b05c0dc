"""Wait until the next attempt of a job is due."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang import restarting


class ActionModule(ObservingAction):
    """Wait until the next attempt of a job is due."""

    _supports_check_mode = False
    decide = staticmethod(restarting.await_restart)
