"""Start a rank in the background."""

from __future__ import annotations

import shlex

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang.connections import Args, Returned


class ActionModule(HostAction):
    """Start a rank in the background."""

    _supports_check_mode = False

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Return as soon as the supervisor is running; fail if it does not start."""
        modes = ["-S", "-E", "-m", "train.host.supervisor"]
        supervisor = [options["python"], *modes, options["rank_dir"]]
        done = self._low_level_execute_command(
            f"{self._compute_environment_string()} {shlex.join(supervisor)} 2>&1",
            chdir=shlex.quote(f"{options['rank_dir']}/launcher"),
        )
        started = done["rc"] == 0
        result = {"started": started, "changed": started}
        if not started:
            said = str(done["stdout"] or done["stderr"]).strip()
            result |= {"failed": True, "msg": f"the supervisor did not start: {said}"}
        return result
