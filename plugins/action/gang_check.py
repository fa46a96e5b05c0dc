"""Check whether ranks can start on their hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import checking


class ActionModule(GangAction):
    """Check whether ranks can start on their hosts."""

    decide = staticmethod(checking.check_hosts)
