"""Merge the job lists of all hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_lists


class ActionModule(GangAction):
    """Merge the job lists of all hosts."""

    decide = staticmethod(job_lists.jobs)
