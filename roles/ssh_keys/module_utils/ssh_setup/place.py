"""Where the cluster's files lie in a user's home, and what of them is there."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule

from .files import ProblemError, read_text, sha256
from .keys import public_key
from .lines import is_included, is_ours

KEY = "id_ed25519"
NEXT = "id_ed25519.next"
HOSTS = "hosts.json"
#: Whole files of ours that the user's programs read.
FILES = ("known_hosts", "config")


class Place:
    """The folders and files of one user."""

    def __init__(self, home: str, name: str) -> None:
        self.name = name
        self.ssh = os.path.join(home, ".ssh")
        self.folder = os.path.join(self.ssh, name)
        self.authorized = os.path.join(self.ssh, "authorized_keys")
        self.config = os.path.join(self.ssh, "config")

    def path(self, name: str) -> str:
        """Return the path of a file of ours."""
        return os.path.join(self.folder, name)

    def keys(self) -> Tuple[str, str]:
        """Return the public key, and the one that is to follow unless it already has."""
        current, following = public_key(self.path(KEY)), public_key(self.path(NEXT))
        return current, "" if following == current else following

    def has_spare(self) -> bool:
        """Tell whether the key lies in the place of the next one, too: it has followed."""
        return bool(self.keys()[0]) and public_key(self.path(NEXT)) == self.keys()[0]

    def load(self) -> Dict[str, Any]:
        """Return what ``hosts.json`` holds; nothing where it is missing or broken."""
        try:
            loaded = json.loads(read_text(self.path(HOSTS)))
            hosts = [host for host in loaded["hosts"] if isinstance(host["names"], list)]
            return {"written": int(loaded["written"]), "hosts": hosts}
        except (ValueError, KeyError, TypeError):
            return {"written": 0, "hosts": []}

    def wrong_modes(self) -> List[Tuple[str, int]]:
        """Return the paths that ssh or sshd would refuse, each with the mode it should have."""
        wrong = []
        ours = [self.path(name) for name in (KEY, NEXT)]
        for path, forbidden in [
            (self.ssh, 0o022),
            (self.folder, 0o077),
            *((path, 0o077) for path in ours),
            *((self.path(name), 0o022) for name in FILES),
            (self.authorized, 0o022),
            (self.config, 0o022),
        ]:
            try:
                mode = stat.S_IMODE(os.stat(path).st_mode)
            except FileNotFoundError:
                continue
            if mode & forbidden:
                wrong.append((path, mode & ~forbidden))
        return wrong

    def digests(self) -> Dict[str, str]:
        """Return what is there in a form that can be compared with what is wanted."""
        lines = read_text(self.authorized).splitlines(True)
        known = json.dumps(self.load()["hosts"], sort_keys=True, separators=(",", ":"))
        digests = {name: sha256(read_text(self.path(name))) for name in FILES}
        digests["authorized_keys"] = sha256("".join(li for li in lines if is_ours(li, self.name)))
        digests["hosts"] = sha256(known)
        digests["include"] = "yes" if is_included(read_text(self.config), self.name) else "no"
        digests["spare"] = "yes" if self.has_spare() else "no"
        digests["modes"] = ", ".join("%s %04o" % wrong for wrong in self.wrong_modes())
        return digests

    def make_folders(self, module: AnsibleModule) -> None:
        """Make ``~/.ssh`` and our folder in it.

        Raises:
            OSError: they cannot be made.
        """
        for path in (self.ssh, self.folder):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise ProblemError("%s is no folder: move it away" % path) from None
            else:
                module.set_default_selinux_context(path, False)
