"""Read a host's variables from the inventory again."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang import replacing


class ActionModule(ObservingAction):
    """Read a host's variables from the inventory again."""

    decide = staticmethod(replacing.update)
