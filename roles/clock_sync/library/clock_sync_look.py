#!/usr/bin/python
"""Ansible module: tells in one call whether a host keeps time as wanted, and how wrong it is.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clock_sync_look
short_description: Tell in one call whether a host keeps time with chrony as wanted
description:
  - Compares chrony's configuration, its unit and what else keeps time with what is wanted, returns
    the texts that are wanted, and changes nothing.
  - Where all is as wanted, it waits until chrony has chosen a source, and fails where it chooses
    none or the clock is too far off.
options:
  state:
    description:
      - V(absent) compares with a host that has nothing of the role, as far as files go, and returns
        the texts for that.
    type: str
    choices: [present, absent]
    default: present
  servers:
    description: NTP servers, names or addresses.
    type: list
    elements: str
    default: []
  pools:
    description: NTP pools, names.
    type: list
    elements: str
    default: []
  serve:
    description:
      - Names or addresses that may ask this host for the time, which then gives its own where it
        reaches no source. Names are looked up on the host. Empty where it serves nobody.
    type: list
    elements: str
    default: []
  max_skew:
    description: Seconds that the clock may be off. 0 asks nothing of the clock.
    type: float
    default: 0
  timeout:
    description: Seconds to wait for a source.
    type: float
    default: 0
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the clock
  clock_sync_look:
    servers: [192.0.2.11]
    max_skew: 0.5
    timeout: 60
  register: look
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
  sample: ["chrony is not installed"]
family:
  description: V(debian) or V(redhat).
  type: str
  returned: success
installed:
  description: Whether chrony is installed.
  type: bool
  returned: success
unit:
  description: The name of chrony's unit.
  type: str
  returned: success
others:
  description: Units of other time daemons that are active or enabled.
  type: list
  elements: str
  returned: success
files:
  description: Files as they are wanted, each with C(path) and C(text). An empty text is no file.
  type: list
  elements: dict
  returned: success
applied:
  description: Path and text of the note that chrony runs with these files.
  type: dict
  returned: success
sets_clock:
  description: Whether this host may set its clock. A container mostly may not.
  type: bool
  returned: success
clock:
  description:
    - C(source) is what chrony follows, C(stratum) this host's distance from a reference clock,
      C(offset) the seconds by which the clock is ahead of the source (negative, behind).
  type: dict
  returned: where all is as wanted and the clock is asked for
  sample: {source: 192.0.2.11, stratum: 11, offset: -0.00002}
"""

import hashlib
import ipaddress
import os
import re
import socket
import subprocess
import time
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule

#: Where each family keeps what: the main file, the folder of own files, the unit, its options.
FAMILIES = {
    "debian": {
        "main": "/etc/chrony/chrony.conf",
        "folder": "/etc/chrony/conf.d",
        "unit": "chrony.service",
        "options": "$DAEMON_OPTS",
    },
    "redhat": {
        "main": "/etc/chrony.conf",
        "folder": "/etc/chrony.d",
        "unit": "chronyd.service",
        "options": "$OPTIONS",
    },
}
DAEMON = "/usr/sbin/chronyd"
OTHERS = ["systemd-timesyncd", "ntp", "ntpd", "ntpsec", "openntpd"]
APPLIED = "/var/lib/chrony/clock_sync.applied"
HEADER = "# Written by the role clock_sync.\n"
#: In the main file: before a line that the role has put out of use; above a line that it added.
OFF = "#clock_sync# "
ADDED = "# The next line is from the role clock_sync."
SOURCE_LINE = re.compile(r"^\s*(?:pool|server|peer)\s", re.IGNORECASE)
CAP_SYS_TIME = 25
NOT_SYNCHRONISED = "Not synchronised"
LOCAL_REFERENCE = "7F7F0101"


class WrongClockError(Exception):
    """The clock follows nobody, or is too far off; the message says which."""


class HostError(Exception):
    """The host is none that the role can work on; the message says why."""


def host_family(root: str = "/") -> str:
    """Return the key of `FAMILIES` for this host.

    Raises:
        HostError: there is none, or systemd does not run.
    """
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        raise HostError("no systemd runs on this host: the role clock_sync needs it for chrony")
    for family, mark in (("debian", "etc/debian_version"), ("redhat", "etc/redhat-release")):
        if os.path.exists(os.path.join(root, mark)):
            return family
    raise HostError(
        "this host is neither of Debian's nor of Red Hat's family: set its clock up by hand and"
        " leave the role clock_sync out"
    )


def can_set_clock(status: str) -> bool:
    """Return whether a process with this ``/proc/PID/status`` can have CAP_SYS_TIME."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return not found or bool(int(found.group(1), 16) >> CAP_SYS_TIME & 1)


def resolve(names: List[str]) -> List[str]:
    """Return the addresses of names and addresses, sorted, without loopback.

    Raises:
        HostError: a name has no address.
    """
    found = set()
    for name in names:
        try:
            found.add(ipaddress.ip_network(name, strict=False))
            continue
        except ValueError:
            pass
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except socket.gaierror as error:
            raise HostError(
                "this host cannot resolve %s (%s): set clock_sync_allow to addresses or networks"
                % (name, error.strerror)
            ) from error
        found |= {ipaddress.ip_network(str(answer[4][0]).partition("%")[0]) for answer in answers}
    wanted = [network for network in found if not network.is_loopback]
    wanted.sort(key=lambda network: (network.version, network.network_address, network.prefixlen))
    return [
        str(network.network_address if network.num_addresses == 1 else network)
        for network in wanted
    ]


def own_text(params: Dict[str, Any]) -> str:
    """Return the role's own file, empty where chrony needs nothing of it.

    Raises:
        HostError: a name in ``serve`` has no address.
    """
    lines = ["server %s iburst" % name for name in params["servers"]]
    lines += ["pool %s iburst" % name for name in params["pools"]]
    if params["serve"]:
        lines.append("# Without another source, the cluster goes by this host's own clock.")
        lines.append("local stratum 10")
        lines += ["allow %s" % address for address in resolve(params["serve"])]
    return HEADER + "".join(line + "\n" for line in lines) if lines else ""


def main_text(text: str, own_sources: bool, folder: Optional[str]) -> str:
    """Return chrony's main file with the distribution's sources off or on.

    Args:
        text: the file as it is.
        own_sources: whether the role's file names sources, which then are the only ones.
        folder: the folder of the role's file, which the main file then has to name.
    """
    lines: List[str] = []
    found = iter(text.splitlines())
    for line in found:
        if line == ADDED:
            next(found, "")
            continue
        bare = line[len(OFF) :] if line.startswith(OFF) else line
        lines.append(OFF + bare if own_sources and SOURCE_LINE.match(bare) else bare)
    if folder and ["confdir", folder] not in [line.split() for line in lines]:
        lines += [ADDED, "confdir " + folder]
    return text if lines == text.splitlines() else "".join(line + "\n" for line in lines)


def drop_in_text(options: str) -> str:
    """Return the unit's drop-in for a host that may not set its clock."""
    return (
        HEADER
        + """# This host may not set its clock (no CAP_SYS_TIME): chrony watches it only (-x).
[Unit]
ConditionCapability=
[Service]
ExecStart=
ExecStart=!%s %s -x
"""
        % (DAEMON, options)
    )


def digest(files: List[Dict[str, str]]) -> str:
    """Return a hash of files as `wanted_files` gives them."""
    return hashlib.sha256(repr([(f["path"], f["text"]) for f in files]).encode()).hexdigest()


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def check_units(shown: str, unit: str) -> Dict[str, List[str]]:
    """Return what differs of chrony's unit, and which other time daemons there are.

    Args:
        shown: what ``systemctl show`` says of all of them.
        unit: chrony's.
    """
    states = [
        dict(line.partition("=")[::2] for line in block.splitlines())
        for block in shown.strip().split("\n\n")
    ]
    differences, others = [], []
    for state in states:
        active = state.get("ActiveState") in ("active", "activating", "reloading")
        enabled = state.get("UnitFileState") in ("enabled", "enabled-runtime")
        if state.get("Id") == unit:
            differences += [] if active else ["chrony does not run"]
            differences += [] if enabled else ["chrony is not started with the host"]
        elif state.get("LoadState") == "loaded" and (active or enabled):
            others.append(state["Id"])
    return {"differences": differences, "others": others}


def read_tracking(tracking: str, sources: str) -> Optional[Dict[str, Any]]:
    """Return what chrony says of the clock; None where it follows nobody.

    Args:
        tracking: of ``chronyc -c tracking``. It tells the correction that the clock still needs.
        sources: of ``chronyc -c sources``. Where chrony may not set the clock, a large offset is in
            the last sample of the source until chrony has given up stepping, and not in tracking.
    """
    fields = tracking.strip().split(",")
    if len(fields) != 14 or fields[13] == NOT_SYNCHRONISED:
        return None
    source = "its own clock" if fields[0] == LOCAL_REFERENCE else fields[1] or fields[0]
    samples = [line.split(",") for line in sources.splitlines()]
    ahead = [float(sample[7]) for sample in samples if len(sample) == 10 and sample[1] == "*"]
    # A clock that is behind needs a positive correction.
    offset = sum(ahead) - float(fields[4])
    return {"source": source, "stratum": int(fields[2]), "offset": offset}


def chronyc(*arguments: str) -> str:
    """Return what chronyc prints, errors included."""
    done = subprocess.run(
        ["chronyc", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode(errors="replace").strip()


def judge(clock: Dict[str, Any], max_skew: float, sets_clock: bool) -> None:
    """Raise WrongClockError where the clock is off by more than ``max_skew`` seconds."""
    if abs(clock["offset"]) <= max_skew:
        return
    remedy = "chrony mends this slowly; `chronyc makestep` does it at once, while no job runs"
    if not sets_clock:
        remedy = "this host may not set its clock (no CAP_SYS_TIME): set that of its machine"
    raise WrongClockError(
        "the clock of this host is %.3f s %s its source %s, clock_sync_max_skew allows %g s: %s"
        % (
            abs(clock["offset"]),
            "ahead of" if clock["offset"] > 0 else "behind",
            clock["source"],
            max_skew,
            remedy,
        )
    )


def read_clock(timeout: float) -> Dict[str, Any]:
    """Return what chrony says of the clock, once it follows a source.

    Raises:
        WrongClockError: it follows none within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        said = chronyc("-c", "tracking")
        clock = read_tracking(said, chronyc("-c", "-n", "sources"))
        if clock:
            return clock
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    sources = [line.split(",") for line in chronyc("-c", "-N", "sources", "-a").splitlines()]
    names = sorted({fields[2] for fields in sources if len(fields) > 2})
    raise WrongClockError(
        "the clock of this host follows no source after %g s (%s): name NTP servers that it"
        " reaches (UDP port 123) in clock_sync_servers, or one host of the cluster in"
        " clock_sync_source"
        % (timeout, "no use of " + ", ".join(names) if names else "chrony knows none; " + said)
    )


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        HostError: the host is none that the role can work on.
        OSError: a file cannot be read.
        WrongClockError: all is as wanted, but not the clock.
    """
    wanted_here = params["state"] == "present"
    family = host_family()
    places = FAMILIES[family]
    main = read(places["main"])
    # The package writes the main file last.
    installed = os.path.exists(DAEMON) and bool(main)
    differences = [] if installed or not wanted_here else ["chrony is not installed"]
    sets_clock = can_set_clock(read("/proc/self/status"))

    own = own_text(params)
    own_sources = bool(params["servers"] or params["pools"])
    drop_in = drop_in_text(places["options"]) if wanted_here and not sets_clock else ""
    files = [
        {"path": places["folder"] + "/train.conf", "text": own},
        {"path": "/etc/systemd/system/%s.d/clock_sync.conf" % places["unit"], "text": drop_in},
    ]
    if main:
        text = main_text(main, own_sources, places["folder"] if own else None)
        files.append({"path": places["main"], "text": text})
    for wanted in files:
        if read(wanted["path"]) != wanted["text"]:
            differences.append("%s has another content" % wanted["path"])
    # A run that was cut off before chrony was started again with the files left no such note. Times
    # of files say nothing: the clock itself may have been set in between.
    applied = {"path": APPLIED, "text": digest(files[:2]) if wanted_here else ""}
    if installed and read(APPLIED) != applied["text"]:
        differences.append("chrony was not started with the role's files")

    shown = subprocess.run(
        [
            *("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState"),
            *(places["unit"], *OTHERS),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.decode()
    units = check_units(shown, places["unit"])
    if wanted_here:
        differences += units["differences"] if installed else []
        differences += ["%s keeps time, too" % name for name in units["others"]]

    result: Dict[str, Any] = {
        "changed": False,
        "ready": not differences,
        "differences": differences,
        "family": family,
        "installed": installed,
        "unit": places["unit"],
        "others": units["others"],
        "files": files,
        "applied": applied,
        "sets_clock": sets_clock,
    }
    if wanted_here and not differences and params["max_skew"] > 0:
        result["clock"] = read_clock(params["timeout"])
        judge(result["clock"], params["max_skew"], sets_clock)
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["present", "absent"], "default": "present"},
            "servers": {"type": "list", "elements": "str", "default": []},
            "pools": {"type": "list", "elements": "str", "default": []},
            "serve": {"type": "list", "elements": "str", "default": []},
            "max_skew": {"type": "float", "default": 0.0},
            "timeout": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module.params))
    except (HostError, WrongClockError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)


if __name__ == "__main__":
    main()
