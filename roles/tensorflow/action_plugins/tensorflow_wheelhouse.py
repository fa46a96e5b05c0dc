"""Ansible action plugin: fills a folder of the control node with the wheels of lock files."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# The repository: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from roles.tensorflow.control import locks, wheels


class ActionModule(ActionBase):  # type: ignore[misc]
    """Download what is missing. Options: folder, locks, variants, extra_requirements, pythons,
    platform, index_url; see the role's variables ``tensorflow_wheelhouse_*``.
    """

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """What was downloaded, or would be."""
        super().run(tmp, task_vars)
        args = self._task.args
        folder = Path(args["folder"]).expanduser()
        if not args["folder"] or not folder.is_absolute():
            raise AnsibleActionFail(
                f"tensorflow_wheelhouse_source is {args['folder']!r}: name the folder to fill, with"
                " an absolute path or one that begins with ~."
            )
        pythons = args["pythons"]
        if not pythons or not all(re.fullmatch(r"3\.\d+", str(python)) for python in pythons):
            raise AnsibleActionFail(
                f"tensorflow_wheelhouse_pythons is {pythons}: write the versions of the hosts'"
                ' Python, such as ["3.11", "3.13"].'
            )
        find = partial(self._find_needle, "files")
        described = locks.describe_locks(args["locks"], find)
        paths = [
            Path(lock["path"])
            for lock in described
            if len(described) == 1 or lock["variant"] in args["variants"]
        ]
        if not paths:
            raise AnsibleActionFail(
                f"tensorflow_wheelhouse_variants is {args['variants']}: write cpu, gpu, or both."
            )
        if args["extra_requirements"]:
            extra = args["extra_requirements"]
            path = locks.find_lock(extra, find, "tensorflow_extra_requirements")
            paths.append(Path(locks.describe_extra(path)["path"]))
        wanted = wheels.lacking(folder, paths, pythons, args["platform"])
        result = {
            "changed": bool(wanted),
            "folder": str(folder),
            "lacking": [f"{path} for Python {python}" for path, python in wanted],
            "downloaded": [],
        }
        if not self._task.check_mode:
            environment = {"PIP_INDEX_URL": args["index_url"]} if args["index_url"] else {}
            result["downloaded"] = wheels.fill(
                folder, paths, pythons, args["platform"], environment
            )
        return result
