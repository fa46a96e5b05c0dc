"""Decide whether TensorFlow can be installed on machines."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import suitability_check


class ActionModule(GangAction):
    """Decide whether TensorFlow can be installed on machines."""

    decide = staticmethod(suitability_check.judge)
