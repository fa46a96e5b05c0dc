"""Release the resources of a rank that has not started."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang.connections import Args, Returned
from train.gang.plan import withdrawal


class ActionModule(HostAction):
    """Release the resources of a rank that has not started."""

    _supports_check_mode = False

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Withdraw the attempt on the control node, and undo it on the host."""
        if options["run_dir"]:
            withdrawal.withdraw(Path(options["run_dir"]), options["attempt"])
        return self.call(options, task_vars)
