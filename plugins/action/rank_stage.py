"""Make a rank ready to start."""

from __future__ import annotations

import json

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang import connections
from train.gang.connections import Args, Returned


class ActionModule(HostAction):
    """Make a rank ready to start."""

    _supports_check_mode = False

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Send the job's archive to the host, and stage the rank with it.

        The script's environment is added here, so that it is not in an argument or a result that
        could be printed.
        """
        play = connections.Play(self, task_vars)
        environment = play.environment(str(task_vars["inventory_hostname"]))
        spec = json.dumps({**json.loads(options["spec"]), "environment": environment})
        folder = self._make_tmp_path()
        try:
            archive = self._connection._shell.join_path(folder, "job.tgz")
            self._transfer_file(options["archive"], archive)
            self._fixup_perms2((folder, archive))
            return self.call(options, task_vars, archive=archive, spec=spec)
        finally:
            self._remove_tmp_path(folder, force=True)
