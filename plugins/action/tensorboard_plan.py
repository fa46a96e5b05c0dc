"""Choose hosts and ports for TensorBoard."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import tensorboard_plan


class ActionModule(GangAction):
    """Choose hosts and ports for TensorBoard."""

    decide = staticmethod(tensorboard_plan.choose)
