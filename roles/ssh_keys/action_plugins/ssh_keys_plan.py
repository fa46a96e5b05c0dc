"""Settles on the control node what every host must have; the task that uses it runs once.

What one host needs of all others is the same text for all of them: it is made once, from what the
hosts have told, and compared with the digests that they have told, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# The repository: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from roles.ssh_keys.control.inventory import InputError
from roles.ssh_keys.control.settling import Settled, notes_on, settle, who_knows
from roles.ssh_keys.control.texts import content_of, digests_of


class ActionModule(ActionBase):  # type: ignore[misc]
    """Settles keys and files; its arguments are those of roles/ssh_keys/tasks/main.yml."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what there is to do, and what it takes.

        ``work`` tells whether there is anything; ``ask`` names the hosts that are to tell what they
        know of the ``missing`` ones; ``make`` the hosts that need a key. ``content`` and
        ``digests`` are those of a host that is ready. ``notes`` is for the user.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        cluster = str(args["name"])
        hostvars = variables["hostvars"]
        members = [str(name) for name in args["hosts"]]
        unheard = [name for name in members if name not in hostvars]
        if unheard:
            raise AnsibleActionFail(
                f"ssh_keys_hosts names {', '.join(unheard)}, and the inventory has no such host"
            )
        played = [str(name) for name in variables["ansible_play_hosts_all"]]
        asked = [str(name) for name in args.get("asked", ())]
        known = [hostvars[name].get("__ssh_keys_known", {}) for name in asked]
        try:
            settled = settle(
                members,
                played,
                hostvars,
                args["sources"],
                known,
            )
        except InputError as error:
            raise AnsibleActionFail(str(error)) from None
        batch = [str(name) for name in variables["ansible_play_batch"]]
        result.update(self._result(settled, cluster, batch, args))
        return result

    def _result(
        self, settled: Settled, cluster: str, batch: Sequence[str], args: Mapping[str, Any]
    ) -> dict[str, Any]:
        content = content_of(settled.records, cluster)
        digests = digests_of(content)
        answers = settled.answers
        make = [name for name in answers if args["rekey"] or not answers[name]["key"]]
        ask = who_knows(settled)
        differing = any(answer["digests"] != digests for answer in answers.values())
        lost = [name for name in answers if name not in batch]
        result = {
            "changed": False,
            "work": bool(make or ask or differing or settled.pending or settled.refused),
            "make": make,
            "ask": ask,
            "missing": settled.missing,
            "refused": settled.refused,
            "pending": settled.pending,
            "switch": bool(settled.pending) and not settled.missing and not lost,
            "digests": digests,
            "notes": notes_on(settled, lost),
        }
        # Only who changes something needs the texts, and they grow with the cluster.
        if "asked" in args:
            result["content"] = {**content, "written": int(time.time())}
            result["asked"] = args["asked"]
        return result
