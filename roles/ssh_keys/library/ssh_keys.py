#!/usr/bin/python
"""Ansible module: a host's own part in the SSH logins of a cluster.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_keys
short_description: A host's own part in the SSH logins of a cluster
description:
  - Makes the user's key of the cluster, tells the public half, and writes what the host has to know
    of the others. The private half stays on the host.
  - Everything lies in C(~/.ssh/NAME/), but for one line in C(~/.ssh/config) and one line a key in
    C(~/.ssh/authorized_keys). All other lines of these files are left as they are.
  - Files are written beside their place and renamed, so none is ever seen half-written.
  - Started by root through C(sudo), it works as the user who called C(sudo), unless O(user) says
    otherwise; it gives up root's rights before it looks at anything.
options:
  state:
    description:
      - V(look) tells what is there and changes nothing; one such call tells all there is to know of
        a host that is ready.
      - V(keys) makes the key if there is none, and with O(rekey) the next one beside it.
      - V(known) tells what the host's files hold about the hosts O(wanted), and changes nothing.
      - V(written) writes O(content).
      - V(switched) puts the next key in the place of the current one, in one step. The next
        V(written) takes it out of its old place; a login that has begun with one of two keys can so
        end with the other.
      - V(absent) takes away what the module wrote, with O(keys) the key as well.
    type: str
    choices: [look, keys, known, written, switched, absent]
    default: look
  name:
    description: Name of the cluster, of its folder and of its lines.
    type: str
    required: true
  user:
    description: The user whose logins these are. Empty for the one who logged in.
    type: str
    default: ""
  host_keys:
    description: Pattern of the files that hold the host's public keys.
    type: str
    default: /etc/ssh/ssh_host_*_key.pub
  resolve:
    description:
      - Names of this host. Where they are no addresses, the host looks up their addresses.
    type: list
    elements: str
    default: []
  rekey:
    description: Whether a new key is wanted beside the one that is there.
    type: bool
    default: false
  wanted:
    description: Inventory names of the hosts to tell about.
    type: list
    elements: str
    default: []
  content:
    description:
      - C(authorized_keys) (the cluster's lines), C(known_hosts) and C(config) (whole files),
        C(hosts) (what they were made from, as JSON) and C(written) (when, in seconds since 1970).
    type: dict
    default: {}
  keys:
    description: Whether the key is taken away as well.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details: Tells which hosts come and go.
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at keys and files
  ssh_keys:
    name: train-cluster
  register: look
"""

RETURN = r"""
user:
  description: The user whose logins these are.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
key:
  description: The public key of this host; empty if there is none yet.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
next:
  description: The public key that is to follow; empty where none is.
  type: str
  returned: O(state) is V(look), V(keys) or V(switched)
host_keys:
  description: The public keys of the host itself, type and text.
  type: list
  elements: str
  returned: O(state) is V(look), V(keys) or V(switched)
addresses:
  description: What the names in O(resolve) that are no addresses stand for.
  type: list
  elements: str
  returned: O(state) is V(look), V(keys) or V(switched)
digests:
  description: SHA-256 of each managed part, and what is wrong with modes.
  type: dict
  returned: O(state) is V(look), V(keys) or V(switched)
written:
  description: When the managed files were made, in seconds since 1970; 0 if there are none.
  type: int
  returned: O(state) is V(look), V(keys), V(switched) or V(known)
hosts:
  description: What the files hold about the hosts O(wanted).
  type: list
  elements: dict
  returned: O(state) is V(known)
differences:
  description: The parts that were, or in check mode would be, written.
  type: list
  elements: str
  returned: O(state) is V(written)
removed:
  description: What was taken away.
  type: list
  elements: str
  returned: O(state) is V(absent)
left:
  description: What was left.
  type: list
  elements: str
  returned: O(state) is V(absent)
"""

import base64
import binascii
import contextlib
import glob
import hashlib
import ipaddress
import json
import os
import pwd
import re
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from typing import Any, Dict, Iterator, List, Tuple

from ansible.module_utils.basic import AnsibleModule

#: Stands before each Include of this module, so that it knows those of other clusters.
MARKER = "# Kept by the role ssh_keys:"
KEY = "id_ed25519"
NEXT = "id_ed25519.next"
HOSTS = "hosts.json"
#: A folder in ~/.ssh, and none of the files that ssh and sshd have there.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
TAKEN = ("config", "environment", "rc")
#: Whole files of ours that the user's programs read.
FILES = ("known_hosts", "config")


class ProblemError(Exception):
    """What the module cannot do, with its reason and remedy."""


def sha256(text: str) -> str:
    """Return the digest of a text, the same on the control node."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def read_text(path: str) -> str:
    """Return a file's text, byte for byte; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write_text(path: str, text: str) -> None:
    """Write a file in one step; of one that is there, the mode stays, less what sshd refuses.

    Raises:
        ProblemError: it belongs to somebody else.
        OSError: it cannot be written; then it is as it was.
    """
    path = os.path.realpath(path)  # a link stays a link
    try:
        found = os.stat(path)
    except FileNotFoundError:
        mode = 0o600
    else:
        mode = stat.S_IMODE(found.st_mode) & ~0o022
        if not stat.S_ISREG(found.st_mode):
            raise ProblemError("%s is no file: move it away" % path)
        if found.st_uid != os.geteuid():
            owner = "user %d" % found.st_uid
            raise ProblemError("%s belongs to %s: give it to its user" % (path, owner))
    descriptor, new = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(new, mode)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def public_key(path: str) -> str:
    """Return the public half of a private key file; empty where there is no key that works.

    The format is OpenSSH's own (its file PROTOCOL.key): the public half stands before the private
    one, in the clear. A key with a passphrase works for nobody who is not asked for it.
    """
    text = read_text(path)
    try:
        blob = base64.b64decode("".join(text.strip().split("\n")[1:-1]).encode(), validate=True)
        if not blob.startswith(b"openssh-key-v1\0"):
            return ""
        cipher, rest = take_string(blob[15:])
        _, rest = take_string(rest)  # how the passphrase becomes a key
        _, rest = take_string(rest)
        public, private = take_string(rest[4:])  # after the number of keys
        kind, _ = take_string(public)
        take_string(private)
    except (ValueError, binascii.Error, struct.error):
        return ""
    if cipher != b"none" or kind != b"ssh-ed25519":
        return ""
    return "ssh-ed25519 " + base64.b64encode(public).decode()


def take_string(data: bytes) -> Tuple[bytes, bytes]:
    """Return the first string of SSH's encoding, and the rest.

    Raises:
        ValueError: the string is cut off.
        struct.error: so is its length.
    """
    (length,) = struct.unpack(">I", data[:4])
    if len(data) < 4 + length:
        raise ValueError("cut off")
    return data[4 : 4 + length], data[4 + length :]


def make_key(path: str, comment: str) -> None:
    """Make a key at ``path``, unless another process was first.

    Raises:
        ProblemError: ssh-keygen is missing or failed.
        OSError: the folder cannot be written.
    """
    folder = os.path.dirname(path)
    if os.path.lexists(path) and not public_key(path):
        os.unlink(path)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as place:
        new = os.path.join(place, "key")
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", new]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError:
            raise ProblemError(
                "there is no ssh-keygen on this host: install the SSH client "
                "(openssh-client on Debian and Ubuntu, openssh-clients on Rocky and RHEL)"
            ) from None
        if done.returncode or not public_key(new):
            reason = done.stderr.decode(errors="replace").strip()
            raise ProblemError("ssh-keygen made no key in %s: %s" % (folder, reason))
        with open(new, "rb") as stream:
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):  # another inventory host of this machine
            os.link(new, path)


def read_host_keys(pattern: str) -> List[str]:
    """Return the host's public keys without their comments.

    Raises:
        ProblemError: there are none.
        OSError: one cannot be read.
    """
    keys = []
    for path in sorted(glob.glob(pattern)):
        words = read_text(path).split()
        # DSA is no longer served by sshd.
        if len(words) >= 2 and words[0] != "ssh-dss":
            keys.append("%s %s" % (words[0], words[1]))
    if not keys:
        raise ProblemError(
            "no public host key is in %s: is sshd set up (ssh-keygen -A)? Keys elsewhere are named "
            "by ssh_keys_host_keys" % pattern
        )
    return keys


def is_address(name: str) -> bool:
    """Tell whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_usable(address: str) -> bool:
    """Tell whether another host can see this one under an address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # with a zone, fe80::1%eth0
        return False
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def find_addresses(names: List[str]) -> List[str]:
    """Return the addresses of those names that are none.

    Many hosts know their own name as 127.0.1.1 only. If no name tells an address that others see,
    the one that Ansible has connected to is taken, or else the one that leads out of this host.
    """
    found = []  # type: List[Any]
    for name in names:
        if not is_address(name):
            with contextlib.suppress(OSError, UnicodeError):
                found += socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    addresses = {str(entry[4][0]) for entry in found if is_usable(str(entry[4][0]))}
    if addresses or any(is_usable(name) for name in names):
        return sorted(addresses)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4 and is_usable(connection[2]):
        return [connection[2]]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return []
        address = probe.getsockname()[0]
    return [address] if is_usable(address) else []


def is_ours(line: str, name: str) -> bool:
    """Tell whether a line of authorized_keys is the cluster's: its comment says so."""
    words = line.split()
    return len(words) > 2 and words[0] != "#" and words[-1].startswith(name + ":")


def merge_authorized(text: str, lines: str, name: str) -> str:
    """Return authorized_keys with the cluster's lines in the place of its older ones."""
    kept = [line for line in text.splitlines(True) if not is_ours(line, name)]
    if lines and kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    return "".join(kept) + lines


def without_include(text: str, name: str) -> str:
    """Return ~/.ssh/config without the cluster's line."""
    include, kept = "Include %s/config" % name, []  # type: Tuple[str, List[str]]
    for line in text.splitlines(True):
        if line.strip() == include:
            if kept and kept[-1].strip() == MARKER:
                kept.pop()
        else:
            kept.append(line)
    return "".join(kept)


def with_include(text: str, name: str) -> str:
    """Return ~/.ssh/config with the cluster's line at its top."""
    return "%s\nInclude %s/config\n%s" % (MARKER, name, without_include(text, name))


def is_included(text: str, name: str) -> bool:
    """Tell whether the cluster's line stands before everything that could outdo it.

    Of an option that is given twice, ssh takes the first.
    """
    before = ""
    for line in text.splitlines():
        word = line.strip()
        if word == "Include %s/config" % name:
            return True
        if word and not word.startswith("#") and before != MARKER:
            return False
        before = word
    return False


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


def run_look(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Tell what is there."""
    key, following = place.keys()
    return {
        "changed": False,
        "user": user,
        "key": key,
        "next": following,
        "host_keys": read_host_keys(module.params["host_keys"]),
        "addresses": find_addresses(module.params["resolve"]),
        "digests": place.digests(),
        "written": place.load()["written"],
    }


def run_keys(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Make the keys that are missing."""
    key, following = place.keys()
    missing = KEY if not key else NEXT if module.params["rekey"] and not following else None
    if missing and not module.check_mode:
        place.make_folders(module)
        if place.has_spare():
            os.unlink(place.path(NEXT))
        make_key(place.path(missing), "%s:%s" % (place.name, user))
    return dict(run_look(module, place, user), changed=bool(missing))


def run_known(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Tell what the files hold about some hosts."""
    wanted, loaded = set(module.params["wanted"]), place.load()
    hosts = [host for host in loaded["hosts"] if wanted & set(host.get("names", ()))]
    return {"changed": False, "written": loaded["written"], "hosts": hosts}


def run_written(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Write what differs: first what lets others in and says who they are, then who is known."""
    content = module.params["content"]
    before = place.digests()
    after = {name: sha256(content[name]) for name in (*FILES, "authorized_keys", "hosts")}
    after.update(include="yes", modes="", spare="no")
    differences = sorted(name for name in after if before[name] != after[name])
    names = [
        "".join("%s\n" % " ".join(host["names"]) for host in hosts)
        for hosts in (place.load()["hosts"], json.loads(content["hosts"]))
    ]
    if differences and not module.check_mode:
        place.make_folders(module)
        for path, mode in place.wrong_modes():
            os.chmod(path, mode)
        for name in FILES:
            if name in differences:
                write_text(place.path(name), content[name])
        if "authorized_keys" in differences:
            text = read_text(place.authorized)
            lines = content["authorized_keys"]
            write_text(place.authorized, merge_authorized(text, lines, place.name))
        if "include" in differences:
            write_text(place.config, with_include(read_text(place.config), place.name))
        if "hosts" in differences:
            known = '{"written":%d,"hosts":%s}\n' % (content["written"], content["hosts"])
            write_text(place.path(HOSTS), known)
        if "spare" in differences:
            os.unlink(place.path(NEXT))
    return {
        "changed": bool(differences),
        "differences": differences,
        "diff": {"before": names[0], "after": names[1], "before_header": "hosts known"},
    }


def run_switched(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Put the next key in the place of the current one."""
    changed = bool(place.keys()[1])
    if changed and not module.check_mode:
        new = place.path(".new-%d" % os.getpid())
        os.link(place.path(NEXT), new)
        os.rename(new, place.path(KEY))
    return dict(run_look(module, place, user), changed=changed)


def run_absent(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Take away what is ours."""
    act = not module.check_mode
    removed = []
    for path, text, kept in [
        (place.authorized, read_text(place.authorized), merge_authorized),
        (place.config, read_text(place.config), lambda text, _, name: without_include(text, name)),
    ]:
        rest = kept(text, "", place.name)
        if rest == text:
            continue
        removed.append("the cluster's lines in %s" % path)
        if act and rest.strip():
            write_text(path, rest)
        elif act:
            os.unlink(path)
    found = sorted(os.listdir(place.folder)) if os.path.isdir(place.folder) else []
    left = [] if module.params["keys"] else [n for n in found if n in (KEY, NEXT)]
    for name in found:
        if name in left:
            continue
        path = place.path(name)
        removed.append(path)
        if act and os.path.isdir(path):
            shutil.rmtree(path)  # of a key whose making was cut off
        elif act:
            os.unlink(path)
    if act and found and not left:
        os.rmdir(place.folder)
    return {
        "changed": bool(removed),
        "removed": removed,
        "left": [place.path(name) for name in left],
    }


def find_user(name: str, required: bool) -> "pwd.struct_passwd | None":
    """Return the user ``name``, or the one who logged in; None if there is none.

    Raises:
        ProblemError: the user is required and missing, or the rights to work as the user are.
    """
    uid = os.geteuid()
    if not name:
        name = os.environ.get("SUDO_USER", "") if uid == 0 else ""
        name = name or pwd.getpwuid(uid).pw_name
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        if not required:
            return None
        raise ProblemError("there is no user %s on this host: make it first" % name) from None
    if uid not in (0, user.pw_uid):
        mine = pwd.getpwuid(uid).pw_name
        raise ProblemError("user %s cannot work as %s: become root" % (mine, name))
    return user


@contextlib.contextmanager
def working_as(user: "pwd.struct_passwd | None") -> Iterator[None]:
    """Give up root's rights for a time: the home is the user's, and so is every link in it."""
    if user is None or os.geteuid() == user.pw_uid:
        yield
        return
    groups = os.getgroups()
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def run(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        ProblemError: what cannot be done, with the remedy.
        OSError: a file cannot be read or written.
    """
    params = module.params
    os.umask(0o077)
    if not NAME.match(params["name"]) or params["name"] in TAKEN:
        raise ProblemError(
            "ssh_keys_name is %r: use lower-case letters, digits and dashes, and none of %s"
            % (params["name"], ", ".join(TAKEN))
        )
    # In check mode, the user may be one that would have been made by now.
    user = find_user(params["user"], not module.check_mode and params["state"] != "absent")
    # A home that does not exist has no files.
    place = Place(user.pw_dir if user else "/nonexistent", params["name"])
    name = user.pw_name if user else params["user"]
    with working_as(user):
        if params["state"] == "known":
            return run_known(module, place)
        if params["state"] == "written":
            return run_written(module, place)
        if params["state"] == "absent":
            return run_absent(module, place)
        work = {"look": run_look, "keys": run_keys, "switched": run_switched}
        return work[params["state"]](module, place, name)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["look", "keys", "known", "written", "switched", "absent"],
                "default": "look",
            },
            "name": {"type": "str", "required": True},
            "user": {"type": "str", "default": ""},
            "host_keys": {"type": "str", "default": "/etc/ssh/ssh_host_*_key.pub"},
            "resolve": {"type": "list", "elements": "str", "default": []},
            "rekey": {"type": "bool", "default": False, "no_log": False},
            "wanted": {"type": "list", "elements": "str", "default": []},
            "content": {"type": "dict", "default": {}},
            "keys": {"type": "bool", "default": False, "no_log": False},
        },
        supports_check_mode=True,
    )
    # The texts grow with the cluster; nobody reads them in a result.
    shown = {key: value for key, value in module.params.items() if key != "content"}
    try:
        module.exit_json(invocation={"module_args": shown}, **run(module))
    except ProblemError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: mend this, then run the role again" % error)


if __name__ == "__main__":
    main()
