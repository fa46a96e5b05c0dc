"""Find a running or ended job on its hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import reattach


class ActionModule(GangAction):
    """Find a running or ended job on its hosts."""

    decide = staticmethod(reattach.find)
