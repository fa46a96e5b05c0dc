#!/usr/bin/python
"""Ansible module: puts filesystems into fstab and mounts them, or takes them away.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: training_mounts
short_description: Keep filesystems in fstab and mounted
description:
  - Gives each filesystem its line in C(/etc/fstab), marked with the option C(x-train.host), and
    mounts it. A mark makes the line the role's own - marked lines that are not wanted any more are
    taken out, and what they mounted is unmounted; lines without a mark are only replaced.
  - The file is replaced in one step. When a mount fails, it is put back, so that the next start of
    the host is not held up.
options:
  mounts:
    description: The filesystems, each with C(path), C(src), C(fstype) and C(opts).
    type: list
    elements: dict
    default: []
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Mount the shared data
  training_mounts:
    mounts:
      - path: /mnt/data
        src: "nas:/export/data"
        fstype: nfs
        opts: defaults,_netdev,nofail,x-train.host
"""

RETURN = r"""
lines:
  description: The lines of fstab that the module keeps.
  type: list
  elements: str
  returned: success
removed:
  description: Mount points whose lines were taken out.
  type: list
  elements: str
  returned: success
notes:
  description: What takes effect later. They are warnings, too.
  type: list
  elements: str
  returned: success
"""

import os
import re
import socket
import subprocess
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_setup.fstab import FSTAB, MARK, MOUNTS, escape

#: Longest run of mount and umount, in seconds. mount.nfs alone tries for two minutes.
MOUNT_LIMIT_S = 60
NFS_PORT = 2049
#: Filesystems that are there without fstab: their size is changed while they are in use.
REMOUNTED = ("/dev/shm",)


class MountError(Exception):
    """What the host cannot do, with the remedy; the module's ``msg``."""


def fstab_line(mount: Dict[str, str]) -> str:
    """Return the line of a filesystem."""
    fields = (mount["src"], mount["path"], mount["fstype"], mount["opts"])
    return " ".join(escape(field) for field in fields) + " 0 0"


def fields_of(line: str) -> List[str]:
    """Return the fields of a line of fstab; none for a comment or what is no line."""
    fields = line.split()
    return [] if len(fields) < 4 or fields[0].startswith("#") else fields


def merge(text: str, mounts: List[Dict[str, str]]) -> "tuple[str, List[str]]":
    """Return fstab with the wanted lines, and the mount points that it had beyond them.

    A wanted line takes the place of the first one with its mount point; others of it go. Everything
    else stays as it is, but for marked lines.
    """
    wanted = {escape(mount["path"]): fstab_line(mount) for mount in mounts}
    left = dict(wanted)
    lines, removed = [], []
    for line in text.splitlines():
        fields = fields_of(line)
        point = fields[1] if fields else ""
        if point in wanted:
            if point in left:
                new = left.pop(point)
                # Of two lines that mean the same, the older one stays as it was written.
                lines.append(line if fields[:4] == new.split()[:4] else new)
        elif fields and MARK in fields[3].split(","):
            removed.append(point.replace("\\040", " "))
        else:
            lines.append(line)
    lines += left.values()
    return "".join(line + "\n" for line in lines), removed


def mounted(path: str, table: str = MOUNTS) -> Optional[str]:
    """Return the source of what is mounted at ``path``; None where nothing is."""
    source = None
    with open(table, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            fields = line.split()
            if fields[1] == escape(path) and fields[2] != "autofs":
                source = fields[0]
    return source


def run(command: List[str]) -> str:
    """Run a command and return an empty string, or why it failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=MOUNT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "%s did not end within %d s" % (command[0], MOUNT_LIMIT_S)
    except FileNotFoundError:
        return "there is no program %s" % command[0]
    if done.returncode == 0:
        return ""
    # What follows the first line is advice such as to read dmesg.
    text = done.stdout.decode(errors="replace").strip().split("\n")[0].rstrip(".")
    return text or "%s ended with code %d" % (command[0], done.returncode)


def explain(mount: Dict[str, str], reason: str) -> str:
    """Return the message for a filesystem that could not be mounted."""
    if mount["path"] in REMOUNTED:
        return (
            "%s cannot be given the size that training_host_shm_size_mb asks for (%s): %s. In a"
            " container it is set when that is started (docker run --shm-size); set"
            " training_host_shm_size_mb to 0 to leave it alone."
            % (mount["path"], mount["opts"], reason)
        )
    server = mount["src"].rpartition(":/")[0].strip("[]")
    remedy = "See that it is exported to this host and that training_host_nfs is right"
    if server:
        try:
            socket.create_connection((server, NFS_PORT), timeout=5).close()
        except OSError as error:
            remedy = "%s does not answer at port %d (%s): start it, or open its firewall" % (
                server,
                NFS_PORT,
                error,
            )
    return "%s cannot be mounted on %s: %s. %s. Then run again; /etc/fstab was left as it was." % (
        mount["src"],
        mount["path"],
        reason,
        remedy,
    )


def replace(path: str, text: str) -> None:
    """Replace fstab in one step; its mode stays."""
    new = path + ".train"
    with open(new, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(new, os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o644)
    os.replace(new, path)
    if os.path.isdir("/run/systemd/system"):
        run(["systemctl", "daemon-reload"])


def bring(mount: Dict[str, str]) -> None:
    """Mount a filesystem whose line is in fstab.

    Raises:
        MountError: it cannot be mounted.
    """
    path = mount["path"]
    source = mounted(path)
    if path in REMOUNTED and source is not None:
        reason = run(["mount", "-o", "remount," + mount["opts"], path])
    else:
        if source is not None:
            reason = run(["umount", path])
            if reason:
                raise MountError(
                    "%s has %s mounted, not %s, and it cannot be unmounted: %s. End what uses it"
                    " (fuser -vm %s) and run again." % (path, source, mount["src"], reason, path)
                )
        made = not os.path.isdir(path)
        os.makedirs(path, exist_ok=True)
        reason = run(["mount", path])
        if reason and made:
            os.rmdir(path)
    if reason:
        raise MountError(explain(mount, reason))


def repair(mount: Dict[str, str]) -> bool:
    """Unmount what is mounted but does not answer (a stale NFS handle), to mount it anew."""
    path = mount["path"]
    if mounted(path) is None or not run(["stat", "--file-system", "--", path]):
        return False
    return not run(["umount", "--lazy", path])


def large_enough(mount: Dict[str, str]) -> bool:
    """Whether a filesystem of fixed size has the size that its options ask for."""
    size = re.search(r"(?:^|,)size=(\d+)", mount["opts"])
    found = os.statvfs(mount["path"])
    return size is not None and found.f_blocks * found.f_frsize >= int(size.group(1))


def is_there(mount: Dict[str, str]) -> bool:
    """Whether the wanted filesystem is mounted."""
    source = mounted(mount["path"])
    if mount["path"] in REMOUNTED:
        return source is not None and large_enough(mount)
    return source is not None and source.rstrip("/") == mount["src"].rstrip("/")


def keep(mounts: List[Dict[str, str]], check_mode: bool) -> Dict[str, Any]:
    """Bring fstab and what is mounted to what is wanted, and return the module's result.

    Raises:
        MountError: something cannot be mounted or unmounted.
    """
    try:
        with open(FSTAB, encoding="utf-8") as stream:
            before = stream.read()
    except FileNotFoundError:
        before = ""
    points = {fields[1] for fields in map(fields_of, before.splitlines()) if fields}
    # What the host has by itself needs no line.
    mounts = [
        mount
        for mount in mounts
        if mount["path"] not in REMOUNTED or mount["path"] in points or not is_there(mount)
    ]
    text, removed = merge(before, mounts)
    changed = text != before
    notes = [
        "%s is mounted already; its new options count from the next mount on" % mount["path"]
        for mount in mounts
        if mount["path"] not in REMOUNTED
        and is_there(mount)
        and fstab_line(mount).split() not in [line.split() for line in before.splitlines()]
    ]
    result = {
        "lines": [fstab_line(mount) for mount in mounts],
        "removed": removed,
        "notes": notes,
    }
    if check_mode:
        return dict(result, changed=changed or not all(is_there(mount) for mount in mounts))
    for path in removed:
        if path not in REMOUNTED and mounted(path) is not None:
            reason = run(["umount", path])
            if reason:
                raise MountError(
                    "%s is not wanted any more and cannot be unmounted: %s. End what uses it (fuser"
                    " -vm %s) and run again." % (path, reason, path)
                )
    if changed:
        replace(FSTAB, text)
    try:
        for mount in mounts:
            changed = repair(mount) or changed
            if not is_there(mount):
                bring(mount)
                changed = True
    except MountError:
        if text != before:
            replace(FSTAB, before)
        raise
    return dict(result, changed=changed)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={"mounts": {"type": "list", "elements": "dict", "default": []}},
        supports_check_mode=True,
    )
    try:
        result = keep(module.params["mounts"], module.check_mode)
    except MountError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)
    for note in result["notes"]:
        module.warn("%s: %s" % (socket.gethostname(), note))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
