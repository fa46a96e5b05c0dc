"""Choose old jobs over all hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_lists


class ActionModule(GangAction):
    """Choose old jobs over all hosts."""

    decide = staticmethod(job_lists.choose_old)
