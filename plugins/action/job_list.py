"""Put together what hosts know about jobs."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_lists


class ActionModule(GangAction):
    """Put together what hosts know about jobs."""

    decide = staticmethod(job_lists.jobs)
