"""Fetch logs and progress records of a gang."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import (
    ObservingAction,
)

from train.gang.watch import watching


class ActionModule(ObservingAction):
    """Fetch logs and progress records of a gang."""

    follows_job = False
    decide = staticmethod(watching.fetch_logs)
