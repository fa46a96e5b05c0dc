"""Follow the use of all hosts, and the jobs on them."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import overview


class ActionModule(GangAction):
    """Follow the use of all hosts, and the jobs on them."""

    needs_gang = False
    decide = staticmethod(overview.follow)
