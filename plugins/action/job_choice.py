"""Choose the old jobs of all hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_lists


class ActionModule(GangAction):
    """Choose the old jobs of all hosts."""

    decide = staticmethod(job_lists.choose_old)
