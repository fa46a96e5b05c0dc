"""Decide what follows an attempt that could not start."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang import restarting


class ActionModule(ObservingAction):
    """Decide what follows an attempt that could not start."""

    _supports_check_mode = False
    decide = staticmethod(restarting.judge_refusal)
