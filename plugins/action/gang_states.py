"""Report the states of a job's ranks."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_calls


class ActionModule(GangAction):
    """Report the states of a job's ranks."""

    needs_gang = False
    decide = staticmethod(job_calls.states)
