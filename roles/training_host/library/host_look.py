#!/usr/bin/python
"""Ansible module: tells in one call whether a host is as a role wants it.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_look
short_description: Tell in one call whether a host is as a role wants it
description:
  - Compares packages, services, files and folders with what is wanted and changes nothing. A role
    that finds its host ready skips its other tasks, each of which would cost as much as this one.
  - Runs under the host's Python alone, without a package manager's library.
options:
  packages:
    description:
      - Names of the packages that must be installed, by family (V(debian), V(redhat)). A host of
        another family has none of them.
    type: dict
    default: {}
  services:
    description: Names of systemd units that must be enabled and active.
    type: list
    elements: str
    default: []
  files:
    description:
      - Files that must be there. Each has C(path), and C(content) (the whole text), C(lines) (lines
        that it must have among others), C(mode) (such as V("0644")) and C(owner) as far as they
        matter. In C(path), V(~) is expanded.
    type: list
    elements: dict
    default: []
  folders:
    description:
      - Folders that must be there. Each has C(path), and C(mode) and C(owner). In C(path), V(~) is
        expanded.
    type: list
    elements: dict
    default: []
  user:
    description:
      - A user that must be there. Empty for the one that the module runs as. V({user}) in C(path)
        and C(owner) of O(files) and O(folders) stands for the name.
    type: str
    default: ""
  limits:
    description:
      - What logins of O(user) may have. C(path) is a file of C(/etc/security/limits.d), C(nofile) a
        number (0 leaves it alone), C(memlock) V(unlimited), a number of MB, or empty (leaves it
        alone).
      - A limit that this host cannot give (in most containers) is lowered to what it can, with a
        note. Some versions of PAM refuse a login whose limits they cannot set.
    type: dict
    default: {}
  mounts:
    description:
      - Filesystems that must be in C(/etc/fstab) and mounted, and answer. Each has C(path), C(src),
        C(fstype) and C(opts). Other lines of C(/etc/fstab) must not have the option
        C(x-train.host), not even if this list is empty.
    type: list
    elements: dict
  shm_mb:
    description: Least size of C(/dev/shm) in MB. 0 leaves it alone.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the clock
  host_look:
    packages: {debian: [chrony], redhat: [chrony]}
    services: [chrony]
    files:
      - path: /etc/chrony/sources.d/cluster.sources
        content: "{{ lookup('ansible.builtin.template', 'cluster.sources.j2') }}"
  register: look

- name: Set the clock up
  ansible.builtin.include_tasks: converge.yml
  when: not look.ready
"""

RETURN = r"""
ready:
  description: Whether nothing differs.
  type: bool
  returned: success
differences:
  description: What differs, each in a few words.
  type: list
  elements: str
  returned: success
  sample: ["package chrony is not installed"]
family:
  description: V(debian), V(redhat) or the C(ID) of C(/etc/os-release).
  type: str
  returned: success
distribution:
  description: C(ID) of C(/etc/os-release), such as V(debian), V(ubuntu) or V(rocky).
  type: str
  returned: success
release:
  description: C(VERSION_ID) of C(/etc/os-release), such as V(12) or V(24.04).
  type: str
  returned: success
systemd:
  description: Whether systemd runs the host.
  type: bool
  returned: success
user:
  description: Name of O(user), or of the user that the module runs as.
  type: str
  returned: success
limits_content:
  description: What the file of O(limits) must hold. Empty without O(limits).
  type: str
  returned: success
notes:
  description: What is not as wanted and cannot be changed on the host. They are warnings, too.
  type: list
  elements: str
  returned: success
"""

import os
import pwd
import resource
import shlex
import socket
import stat
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ansible.module_utils.basic import AnsibleModule

OS_RELEASE = "/etc/os-release"
DPKG_STATUS = "/var/lib/dpkg/status"
FSTAB = "/etc/fstab"
MOUNTS = "/proc/mounts"
SHM = "/dev/shm"
#: Mount option that marks lines of fstab as this project's.
MARK = "x-train.host"
#: Shows an NVIDIA driver.
NVIDIA_SIGN = "/dev/nvidia0"
#: Less than this in /dev/shm, in MB, and NCCL fails between the GPUs of one host.
NCCL_SHM_MB = 1024
#: Bit of a capability set (capabilities(7)): may raise limits above its own.
CAP_SYS_RESOURCE = 24
#: Longest wait for a mounted filesystem to answer, in seconds. A dead NFS server never does.
ANSWER_LIMIT_S = 10.0
UNLIMITED = resource.RLIM_INFINITY


def os_release(path: str = OS_RELEASE) -> Dict[str, str]:
    """Return the variables of ``os-release``; empty where there is none (os-release(5))."""
    values = {}
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                name, found, value = line.strip().partition("=")
                if found and not name.startswith("#"):
                    values[name] = "".join(shlex.split(value))
    except FileNotFoundError:
        pass
    return values


def family(release: Dict[str, str]) -> str:
    """Return the family of a distribution: the one whose package manager it has."""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if "debian" in names or "ubuntu" in names:
        return "debian"
    if "rhel" in names or "fedora" in names:
        return "redhat"
    return names[0]


def dpkg_installed(path: str = DPKG_STATUS) -> Set[str]:
    """Return the names of the packages that dpkg's status file calls installed."""
    installed, name = set(), ""
    with open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("Package: "):
                name = line[9:].strip()
            elif line.startswith("Status: ") and line.split()[-1] == "installed":
                installed.add(name)
    return installed


def missing_packages(names: List[str], kind: str) -> List[str]:
    """Return those of ``names`` that are not installed."""
    if not names:
        return []
    if kind == "debian":
        installed = dpkg_installed()
        return [name for name in names if name not in installed]
    return [
        name
        for name in names
        if subprocess.run(["rpm", "-q", "--quiet", name], check=False).returncode
    ]


def check_services(names: List[str]) -> List[str]:
    """Return what differs of the units: they must be enabled and active."""
    if not names:
        return []
    shown = subprocess.run(
        ["systemctl", "show", "--property=ActiveState,UnitFileState", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.decode()
    differences = []
    blocks = shown.split("\n\n") + [""] * len(names)
    for index, name in enumerate(names):
        state = dict(line.partition("=")[::2] for line in blocks[index].split())
        if state.get("ActiveState") != "active":
            differences.append("service %s is not active" % name)
        elif state.get("UnitFileState") not in ("enabled", "alias", "static", "generated"):
            differences.append("service %s is not enabled" % name)
    return differences


def check_path(wanted: Dict[str, Any], folder: bool) -> List[str]:
    """Return what differs of a file or folder.

    Raises:
        OSError: it cannot be read.
    """
    path = os.path.expanduser(wanted["path"])
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ["%s is not there" % path]
    if stat.S_ISDIR(found.st_mode) != folder:
        return ["%s is %s folder" % (path, "no" if folder else "a")]
    differences = []
    if wanted.get("mode") and stat.S_IMODE(found.st_mode) != int(str(wanted["mode"]), 8):
        differences.append("%s has mode %04o" % (path, stat.S_IMODE(found.st_mode)))
    if wanted.get("owner"):
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = str(found.st_uid)
        if owner != wanted["owner"]:
            differences.append("%s belongs to %s" % (path, owner))
    if folder or (wanted.get("content") is None and not wanted.get("lines")):
        return differences
    with open(path, "rb") as stream:
        content = stream.read()
    if wanted.get("content") is not None and content != wanted["content"].encode():
        differences.append("%s has another content" % path)
    there = {line.strip() for line in content.decode(errors="replace").splitlines()}
    missing = [line for line in wanted.get("lines") or [] if line.strip() not in there]
    if missing:
        differences.append("%s lacks %d line(s)" % (path, len(missing)))
    return differences


class Ceiling(NamedTuple):
    """The highest value that a login's limit may be given here, and why."""

    value: int
    reason: str


def may_raise_limits(path: str = "/proc/self/status") -> bool:
    """Whether root may raise limits here: not so in most containers."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("CapBnd:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    return True


def first_limits(path: str = "/proc/1/limits") -> Dict[str, int]:
    """Return the hard limits of the first process, from which all others have theirs."""
    names = {"Max open files": "nofile", "Max locked memory": "memlock"}
    values = {}
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                name = names.get(line[:25].strip())
                if name:
                    hard = line[25:].split()[1]
                    values[name] = UNLIMITED if hard == "unlimited" else int(hard)
    except OSError:  # hidden (hidepid): then what this process has
        values["nofile"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        values["memlock"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return values


def ceilings() -> Dict[str, Ceiling]:
    """Return the ceilings of ``nofile`` and ``memlock`` on this host."""
    with open("/proc/sys/fs/nr_open", encoding="utf-8") as stream:
        found = {"nofile": Ceiling(int(stream.read()), "fs.nr_open allows no more")}
    if not may_raise_limits():
        for name, value in first_limits().items():
            known = found.get(name)
            if value != UNLIMITED and (known is None or value < known.value):
                option = "%s=%s" % (name, "-1" if name == "memlock" else "NUMBER")
                reason = "this container must not raise it (start it with --ulimit %s)" % option
                found[name] = Ceiling(value, reason)
    return found


def render_limits(
    user: str, nofile: int, memlock: str, ceiling: Dict[str, Ceiling]
) -> Tuple[str, List[str]]:
    """Return the text of a limits.d file, with every value within its ceiling, and notes.

    Args:
        user: whose logins are meant.
        nofile: number of open files; 0 leaves it alone.
        memlock: ``unlimited`` or MB; empty leaves it alone.
        ceiling: of this host, in files and bytes.
    """
    wanted = {}
    if nofile:
        wanted["nofile"] = nofile
    if memlock:
        wanted["memlock"] = UNLIMITED if memlock == "unlimited" else int(memlock) * 10**6
    lines, notes = ["# Managed by Ansible (role training_host)."], []
    for name, value in wanted.items():
        top = ceiling.get(name)
        if top is not None and (value == UNLIMITED or value > top.value):
            unit = "" if name == "nofile" else " bytes"
            asked = "unlimited" if value == UNLIMITED else "%d%s" % (value, unit)
            notes.append(
                "the limit %s of %s stays at %d%s in place of %s: %s"
                % (name, user, top.value, unit, asked, top.reason)
            )
            value = top.value
        # pam_limits counts locked memory in units of 1024 bytes.
        text = (
            "unlimited" if value == UNLIMITED else str(value if name == "nofile" else value // 1024)
        )
        lines += ["%s %s %s %s" % (user, kind, name, text) for kind in ("soft", "hard")]
    return "\n".join(lines) + "\n", notes


def check_limits(limits: Dict[str, Any], user: str) -> Tuple[str, List[str], List[str]]:
    """Return the text that the limits file must have, what differs, and notes."""
    nofile, memlock = int(limits.get("nofile") or 0), str(limits.get("memlock") or "")
    if memlock not in ("", "unlimited") and not memlock.isdigit():
        raise ValueError(
            "the limit memlock is %r: it must be 'unlimited', a number of MB, or empty" % memlock
        )
    if not nofile and not memlock:
        unwanted = ["%s is not wanted" % limits["path"]] if os.path.exists(limits["path"]) else []
        return "", unwanted, []
    ceiling = ceilings()
    content, notes = render_limits(user, nofile, memlock, ceiling)
    wanted = {"path": limits["path"], "content": content, "mode": "0644", "owner": "root"}
    differences = check_path(wanted, folder=False)
    has = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    least = min(nofile, ceiling["nofile"].value)
    if not differences and pwd.getpwuid(os.getuid()).pw_name == user and has < least:
        notes.append(
            "%s gives %s %d open files, but this login has %d. A login from before keeps what it"
            " had; if a new one has the same, set 'UsePAM yes' in sshd's configuration"
            % (limits["path"], user, least, has)
        )
    return content, differences, notes


def unescape(text: str) -> str:
    """Return a field of fstab or /proc/mounts with its octal escapes decoded (fstab(5))."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def read_mounts(path: str) -> Dict[str, List[str]]:
    """Return source, type and options by mount point, of a file in the form of fstab."""
    mounts: Dict[str, List[str]] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                fields = line.split()
                if len(fields) >= 4 and not fields[0].startswith("#"):
                    mounts[unescape(fields[1])] = [
                        unescape(field) for field in (fields[0], *fields[2:4])
                    ]
    except FileNotFoundError:
        pass
    return mounts


def silent(path: str, limit_s: float = ANSWER_LIMIT_S) -> Optional[str]:
    """Return why the filesystem of ``path`` does not answer; None if it does.

    A process that asks a dead NFS server may not end even when it is killed: it is not waited for.
    """
    asking = subprocess.Popen(
        ["stat", "--file-system", "--", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + limit_s
    while asking.poll() is None:
        if time.monotonic() > deadline:
            asking.kill()
            return "does not answer within %.0f s" % limit_s
        time.sleep(0.005)
    assert asking.stderr is not None
    error = asking.stderr.read().decode(errors="replace").strip()
    return error.rpartition(": ")[2] if asking.returncode else None


def check_mount(wanted: Dict[str, Any]) -> List[str]:
    """Return what differs of a mount: it must be in fstab, be mounted, and answer."""
    path, source = wanted["path"].rstrip("/") or "/", wanted["src"]
    differences = []
    if read_mounts(FSTAB).get(path) != [source, wanted["fstype"], wanted["opts"]]:
        differences.append("%s is not in %s as wanted" % (path, FSTAB))
    # Asked first: that mounts what systemd mounts when it is used.
    reason = silent(path)
    mounted = read_mounts(MOUNTS).get(path)
    if mounted is None or mounted[1] == "autofs":
        why = ": " + reason if mounted and reason else ""
        differences.append("%s is not mounted%s" % (path, why))
    elif mounted[0].rstrip("/") != source.rstrip("/"):
        differences.append("%s is %s, not %s" % (path, mounted[0], source))
    elif reason is not None:
        differences.append("%s (%s) is mounted, but broken: %s" % (path, source, reason))
    return differences


def left_over_mounts(wanted: List[Dict[str, Any]], shm_mb: int) -> List[str]:
    """Return what differs: lines of fstab that the role made and that are not wanted any more."""
    points = {mount["path"] for mount in wanted} | ({SHM} if shm_mb else set())
    return [
        "%s is in %s, but not wanted" % (point, FSTAB)
        for point, (_, _, options) in read_mounts(FSTAB).items()
        if MARK in options.split(",") and point not in points
    ]


def shm_size_mb(path: str = SHM) -> int:
    """Return the size of the filesystem of shared memory in MB; 0 where there is none."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return 0
    return found.f_blocks * found.f_frsize // 10**6


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        OSError: a file cannot be read.
    """
    release = os_release()
    kind = family(release)
    missing = missing_packages(params["packages"].get(kind, []), kind)
    differences = ["package %s is not installed" % name for name in missing]
    notes: List[str] = []
    systemd = os.path.isdir("/run/systemd/system")
    if systemd:
        differences += check_services(params["services"])
    else:
        differences += ["service %s: no systemd runs" % name for name in params["services"]]
    user = params["user"] or pwd.getpwuid(os.getuid()).pw_name
    try:
        pwd.getpwnam(user)
    except KeyError:
        differences.append("user %s is not there" % user)
    if params["mounts"] is not None:
        differences += left_over_mounts(params["mounts"], params["shm_mb"])
        for mount in params["mounts"]:
            differences += check_mount(mount)
    if not any("broken" in difference for difference in differences):
        for paths, folder in ((params["folders"], True), (params["files"], False)):
            for wanted in paths:
                differences += check_path(for_user(wanted, user), folder)
    content = ""
    if params["limits"]:
        content, found, notes = check_limits(params["limits"], user)
        differences += found
    size = shm_size_mb()
    if size < params["shm_mb"]:
        differences.append("%s has %d MB, not %d" % (SHM, size, params["shm_mb"]))
    elif size < NCCL_SHM_MB and params["limits"] and os.path.exists(NVIDIA_SIGN):
        notes.append(
            "%s has %d MB; NCCL wants %d MB between the GPUs of a host: set"
            " training_host_shm_size_mb" % (SHM, size, NCCL_SHM_MB)
        )
    return {
        "changed": False,
        "ready": not differences,
        "differences": differences,
        "family": kind,
        "distribution": release.get("ID", ""),
        "release": release.get("VERSION_ID", ""),
        "systemd": systemd,
        "user": user,
        "limits_content": content,
        "notes": notes,
    }


def for_user(wanted: Dict[str, Any], user: str) -> Dict[str, Any]:
    """Return what is wanted of a path, with the user's name in it."""
    named = {
        name: wanted[name].replace("{user}", user) for name in ("path", "owner") if wanted.get(name)
    }
    return dict(wanted, **named)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "default": {}},
            "services": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "list", "elements": "dict", "default": []},
            "user": {"type": "str", "default": ""},
            "limits": {"type": "dict", "default": {}},
            "mounts": {"type": "list", "elements": "dict"},
            "shm_mb": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        result = look(module.params)
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)
    except ValueError as error:
        module.fail_json(msg=str(error))
    for note in result["notes"]:
        module.warn("%s: %s" % (socket.gethostname(), note))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
