"""Ansible action plugin: the control node's half of the module ``training_data``.

It lets the module look at all entries in one call. Only for what is missing does it read the
sources, send what the host lacks in chunks over Ansible's own connection, and have the module put
it in place.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# The repository: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from roles.training_data.control.entries import Entry, check_entries
from roles.training_data.control.sending import Blob, Word, batches
from roles.training_data.control.sources import Source, Sources
from roles.training_data.module_utils.data_setup import shared

#: How often another run that sends the same is waited for, and seconds without a byte more after
#: which it has stopped.
OTHER_RUNS = 5
GROWING_S = 5.0
#: Exit code of the host's command when the file that it should append to has another size.
OTHER_SIZE = 75


class OtherRunError(Exception):
    """Another run appends to the file of this name on the host."""


class ActionModule(ActionBase):  # type: ignore[misc]
    """Look first; read, send and put in place what is missing."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """Run the action; see the module's documentation for the arguments."""
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        # A worker outlives an ansible-playbook that is killed, and would go on for hours.
        self._parent = os.getppid()
        self._args = dict(self._task.args)
        if self._args.get("step") == "remove":
            return self._call()
        entries = check_entries(self._args.get("entries") or [], self._loader.path_dwim)
        sources = Sources(
            Path(constants.DEFAULT_LOCAL_TMP), Path(constants.ANSIBLE_HOME, "training_data")
        )
        shown = [self._as_shown(entry, sources) for entry in entries]
        result = self._call(entries=shown)
        if result.get("failed"):
            return result
        found = {seen["name"]: seen for seen in result.pop("found")}
        missing = [entry for entry in entries if not found[entry.name]["ready"]]
        # All sources are read before anything is changed.
        read = {entry.name: sources.get(entry) for entry in missing if entry.src is not None}
        brought = []
        for entry in missing:
            if entry.src is None:  # in check mode only: mounted and not verified yet
                brought.append({"name": entry.name, "bytes": 0, "sent": 0})
                continue
            done = self._bring(entry, read[entry.name])
            if done.get("failed"):
                return done
            brought.append(done)
        result["changed"] = any(entry.src is not None for entry in missing)
        result["brought"] = brought
        result["paths"] = {name: seen["path"] for name, seen in found.items()}
        return result

    def _as_shown(self, entry: Entry, sources: Sources) -> dict[str, Any]:
        """Return an entry as the module wants it."""
        sha256 = sources.get(entry).sha256 if entry.needs_source else ""
        return {
            "name": entry.name,
            "dest": entry.dest,
            "mounted": entry.mounted,
            "sha256": entry.sha256,
            "identity": entry.identity(sha256),
            "keras": entry.keras_links,
        }

    def _call(self, **changes: Any) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="training_data",
            module_args={**self._args, **changes},
            task_vars=self._vars,
        )
        return result

    def _bring(self, entry: Entry, source: Source) -> dict[str, Any]:
        """Bring one entry; return what came, or the module's failure."""
        manifest = self._send_manifest(entry, source)
        for _ in range(OTHER_RUNS):
            try:
                return self._bring_at_once(entry, source, manifest)
            except OtherRunError as error:
                part = str(error)
                self._wait_while_growing(part)
        raise AnsibleActionFail(
            f"Other runs write to {part} on this host time and again: let them end first."
        )

    def _wait_while_growing(self, part: str) -> None:
        """Return once no other run sends to this host any more."""
        last = None
        while True:
            command = f"stat -c %s {shlex.quote(part)} 2>/dev/null || echo 0"
            size = self._low_level_execute_command(command)["stdout"].strip()
            if size == last:
                return
            last = size
            time.sleep(GROWING_S)

    def _bring_at_once(self, entry: Entry, source: Source, manifest: str) -> dict[str, Any]:
        """Bring one entry; return what came, or the module's failure.

        Raises:
            OtherRunError: another run sends the same to this host.
            AnsibleActionFail: the host cannot take it.
        """
        planned = self._call(entries=[], step="plan", manifest=manifest)
        if planned.get("failed"):
            return planned
        numbers = planned["missing"]
        done = {
            "name": entry.name,
            "bytes": sum(source.files[number].size for number in numbers),
            "sent": 0,
        }
        if self._task.check_mode:
            return done
        word = Word(f"{self._vars.get('inventory_hostname')}: {entry.name}", done["bytes"])
        hashes = planned["part_hashes"]
        groups = list(batches(source.files, numbers)) or [[]]
        for number, batch in enumerate(groups):
            blob = Blob([source.files[index] for index in batch])
            done["sent"] += self._send(blob, planned["part"], hashes, word)
            hashes = []
            taken = self._call(
                entries=[],
                step="take",
                manifest=manifest,
                batch=batch,
                last=number == len(groups) - 1,
            )
            if taken.get("failed"):
                return taken
        return done

    def _send_manifest(self, entry: Entry, source: Source) -> str:
        """Put on the host what the entry has to bring; return the file's path there."""
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        path: str = shell.join_path(shell.tmpdir, f"{entry.name}.json")
        manifest = {
            "name": entry.name,
            "dest": entry.dest,
            "identity": entry.identity(source.sha256),
            "files": [(file.path, file.size, file.sha256) for file in source.files],
            "unpack": entry.unpack,
            "unpacked_bytes": source.unpacked_bytes,
            "unpacked_files": source.unpacked_files,
            "keras": entry.keras_links,
        }
        self._transfer_data(path, json.dumps(manifest))
        self._fixup_perms2((shell.tmpdir, path))
        return path

    def _send(self, blob: Blob, part: str, hashes: list[list[Any]], word: Word) -> int:
        """Append to ``part`` on the host what it lacks of the files; return the bytes sent.

        Raises:
            OtherRunError: another run sends the same to this host.
            AnsibleActionFail: the host cannot take it.
        """
        target = shlex.quote(part)
        offset = start = blob.agrees_until(hashes)
        word.add(start)
        if offset < sum(length for length, _ in hashes):
            self._execute(f"truncate -s {offset} {target}", None, part)
        while offset < blob.size:
            if os.getppid() != self._parent:
                raise AnsibleActionFail("ansible-playbook has ended. Run it again.")
            data = blob.read(offset, shared.CHUNK)
            size = f'"$(stat -c %s {target} 2>/dev/null || echo 0)"'
            command = f"[ {size} -eq {offset} ] || exit {OTHER_SIZE}; cat >> {target}"
            self._execute(command, data, part)
            offset += len(data)
            word.add(len(data))
        return offset - start

    def _execute(self, command: str, data: bytes | None, part: str) -> None:
        done = self._low_level_execute_command(command, in_data=data)
        if done["rc"] == OTHER_SIZE:
            raise OtherRunError(part)
        if done["rc"] != 0:
            reason = (done["stderr"] or done["stdout"]).strip() or f"exit code {done['rc']}"
            raise AnsibleActionFail(
                f"{part} cannot be written on this host: {reason}. What has come stays and is used"
                " by the next run: free space, or mend what the message names, and run again."
            )
