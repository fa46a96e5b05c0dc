"""End every process of a job's ranks and verify that."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_calls


class ActionModule(GangAction):
    """End every process of a job's ranks and verify that."""

    needs_gang = False
    decide = staticmethod(job_calls.stop)
