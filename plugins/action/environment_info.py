"""Describe TensorFlow's environment on a host."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Describe TensorFlow's environment on a host."""
