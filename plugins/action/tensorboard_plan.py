"""Choose hosts and ports for TensorBoard."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import tensorboard


class ActionModule(GangAction):
    """Choose hosts and ports for TensorBoard."""

    decide = staticmethod(tensorboard.choose)
