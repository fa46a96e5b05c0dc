"""Make a rank ready to start."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang import connections
from train.gang.connections import Args, Returned

#: Maximum size in bytes of an archive that is sent with the call. A larger one is copied to the
#: host first, which takes four more commands.
_SENT = 512 << 10


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
        archive = Path(options["archive"])
        if archive.stat().st_size <= _SENT:
            content = base64.b64encode(archive.read_bytes()).decode()
            return self.call(options, task_vars, content=content, spec=spec)
        folder = self._make_tmp_path()
        try:
            copied = self._connection._shell.join_path(folder, "job.tgz")
            self._transfer_file(options["archive"], copied)
            self._fixup_perms2((folder, copied))
            return self.call(options, task_vars, archive=copied, spec=spec)
        finally:
            self._remove_tmp_path(folder, force=True)
