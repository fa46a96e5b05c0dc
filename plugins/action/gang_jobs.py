"""List the jobs of all hosts."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_calls


class ActionModule(GangAction):
    """List the jobs of all hosts."""

    needs_gang = False
    decide = staticmethod(job_calls.jobs)
