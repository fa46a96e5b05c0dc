"""Limits of logins: what the host can give, the file that PAM reads, what a login has."""

from __future__ import annotations

import os
import pwd
import resource
from typing import Any, Dict, List, NamedTuple, Tuple

from .capabilities import CAP_SYS_RESOURCE, may_have
from .paths import check_path

UNLIMITED = resource.RLIM_INFINITY


class Ceiling(NamedTuple):
    """The highest value that a login's limit may be given here, and why."""

    value: int
    reason: str


def may_raise_limits(path: str = "/proc/self/status") -> bool:
    """Whether root may raise limits here: not so in most containers."""
    with open(path, encoding="utf-8") as stream:
        return may_have(CAP_SYS_RESOURCE, stream.read())


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
