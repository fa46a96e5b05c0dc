"""Plan an attempt: ranks, code archive and manifest."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.plan import planning


class ActionModule(GangAction):
    """Plan an attempt: ranks, code archive and manifest."""

    decide = staticmethod(planning.plan_attempt)
