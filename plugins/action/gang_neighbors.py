"""Find the inventory hosts that share a machine."""

from __future__ import annotations

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import GangAction

from train.gang.connections import Args, Play


class ActionModule(GangAction):
    """Find the inventory hosts that share a machine."""

    needs_gang = False

    @staticmethod
    def decide(play: Play, options: Args) -> dict[str, object]:
        """Return ``beside``: for each host, the names of all hosts of this play on its machine."""
        return {"beside": play.neighbors()}
