"""Require that all hosts have answered."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang import job_calls


class ActionModule(GangAction):
    """Require that all hosts have answered."""

    needs_gang = False
    decide = staticmethod(job_calls.require_answers)
