"""Return the ranks of a job."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_lists


class ActionModule(GangAction):
    """Return the ranks of a job."""

    decide = staticmethod(job_lists.ranks)
