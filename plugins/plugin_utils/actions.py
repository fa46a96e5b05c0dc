"""The base classes of this collection's actions."""

from __future__ import annotations

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401

from train.gang.actions import GangAction, HostAction, ObservingAction

__all__ = ["GangAction", "HostAction", "ObservingAction"]
