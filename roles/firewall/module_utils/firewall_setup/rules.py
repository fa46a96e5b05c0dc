"""The rules as they are wanted: compared with those of the host, loaded, kept, removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict

from ansible.module_utils.host_setup.distribution import family, os_release

from . import places
from .guard import start_guard, stop_guard
from .nft import TABLE, list_table, listed_hash
from .places import read, remove, write
from .programs import SEARCH_PATH, FirewallError, run
from .texts import rules_text, unit_texts
from .wanted import find_members, parse_ports


class Firewall:
    """The rules as they are wanted, and what is done with them."""

    def __init__(self, params: Dict[str, Any]) -> None:
        self.timeout: int = params["confirm_timeout"]
        self.nft = shutil.which("nft", path=SEARCH_PATH) or ""
        self.ports = parse_ports(params["ports"])
        self.networks = find_members(params["members"], params["sources"])
        self.rules = rules_text(self.networks, self.ports)
        self.units = unit_texts(self.nft)

    def look(self) -> Dict[str, Any]:
        """Return what differs.

        Raises:
            FirewallError: nft cannot tell, or no systemd runs.
            OSError: a file cannot be read.
        """
        if not os.path.isdir("/run/systemd/system"):
            raise FirewallError(
                "no systemd runs on this host: the role firewall needs it to load the rules when"
                " the host starts, and to take back rules that lock Ansible out"
            )
        differences = []
        if not self.nft:
            differences.append("nftables is not installed")
        else:
            listing = list_table(self.nft)
            if not listing:
                differences.append("the table inet %s is not loaded" % TABLE)
            elif listed_hash(listing) != read(places.LISTED):
                differences.append("the table inet %s is not the one that was confirmed" % TABLE)
        if read(places.RULES) != self.rules:
            differences.append("%s has other rules" % places.RULES)
        for path, text in self.units.items():
            if read(path) != text:
                differences.append("%s has another content" % path)
        if not os.path.islink(places.ENABLED):
            differences.append("%s is not enabled" % places.UNIT)
        kind = family(os_release())
        return {
            "changed": False,
            "ready": not differences,
            "differences": differences,
            "installed": bool(self.nft),
            "family": kind if kind in ("debian", "redhat") else "",
        }

    def apply(self, dry: bool) -> Dict[str, Any]:
        """Load what differs, with a guard that takes it back.

        Raises:
            FirewallError: it cannot be loaded; then nothing has changed.
            OSError: a file cannot be written.
        """
        result = self.look()
        result["diff"] = {
            "before": read(places.RULES),
            "after": self.rules,
            "before_header": places.RULES,
            "after_header": places.RULES,
        }
        if result["ready"]:
            return result
        result["changed"] = True
        if dry:
            return result
        if not self.nft:
            raise FirewallError("nftables is not installed: install the package nftables")
        stop_guard()
        write(places.PENDING, self.rules)
        run(self.nft, "--check", "--file", places.PENDING)
        start_guard(self.nft, self.timeout)
        run(self.nft, "--file", places.PENDING)
        return result

    def confirm(self) -> Dict[str, Any]:
        """Let the loaded rules hold, now and after the next start of the host.

        Raises:
            FirewallError: they were taken back.
            OSError: a file cannot be written.
        """
        stop_guard()
        if read(places.PENDING) != self.rules:
            raise FirewallError(
                "the new rules were taken back after %d s, because Ansible could not connect again;"
                " the former ones hold" % self.timeout
            )
        for path, text in self.units.items():
            write(path, text)
        write(places.RULES, self.rules)
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", "--quiet", places.UNIT)
        # Loads the file once more: what runs is what the next start brings, whatever the guard did.
        run("systemctl", "reload-or-restart", places.UNIT)
        # Last: a run that was cut off before it is seen as one.
        write(places.LISTED, listed_hash(list_table(self.nft)))
        remove(places.PENDING)
        return {"changed": True, "ready": True}


def remove_all(dry: bool) -> Dict[str, Any]:
    """Remove the table, the unit and the files.

    Raises:
        FirewallError: nft or systemctl fails.
    """
    nft = shutil.which("nft", path=SEARCH_PATH)
    paths = [
        path
        for path in (places.FOLDER, places.UNIT_FILE, places.DROP_IN_FILE)
        if os.path.exists(path)
    ]
    changed = bool(paths)
    if changed and not dry:
        stop_guard()
        if places.UNIT_FILE in paths:
            run("systemctl", "disable", "--quiet", "--now", places.UNIT)
        for path in (places.UNIT_FILE, places.DROP_IN_FILE):
            remove(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(places.DROP_IN_FILE))
        run("systemctl", "daemon-reload")
        if nft and list_table(nft):
            run(nft, "delete", "table", "inet", TABLE)
        shutil.rmtree(places.FOLDER, ignore_errors=True)
    return {"changed": changed, "ready": not changed}
