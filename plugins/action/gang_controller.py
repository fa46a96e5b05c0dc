"""Prepare what a host of the cluster needs to watch a job."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import controlling


class ActionModule(GangAction):
    """Prepare what a host of the cluster needs to watch a job."""

    decide = staticmethod(controlling.prepare)
