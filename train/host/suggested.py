"""Defines the commands that messages can suggest.

How to type a command depends on the folder, inventory and options on the control node. A message
from a host therefore contains a marker, which train/gang/suggestions.py replaces with the command.
Hosts are not trusted, so a marker is only a name with fields, each of which is checked.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, NamedTuple

from . import records

#: The programs: the command line, a playbook of this repository, and a shell on a host.
TRAIN, PLAYBOOK, HOST = "train", "playbook", "host"


class Suggestion(NamedTuple):
    """A command that can be suggested."""

    program: str
    #: Its words, with ``{field}``. Parts in brackets are left out if their field has no value. A
    #: command for a host is a line for its shell.
    usage: str


SUGGESTIONS: Mapping[str, Suggestion] = {
    "attach": Suggestion(TRAIN, "attach {job}"),
    "clean": Suggestion(TRAIN, "clean --older-than {age}"),
    "doctor": Suggestion(TRAIN, "doctor"),
    "list": Suggestion(TRAIN, "list"),
    "logs": Suggestion(TRAIN, "logs {job}"),
    "restart": Suggestion(TRAIN, "restart {job}"),
    "run": Suggestion(TRAIN, "run"),
    "stop": Suggestion(TRAIN, "stop {job}"),
    "setup": Suggestion(
        PLAYBOOK, "playbooks/setup.yml [--limit {hosts}] [--tags {tags}] [-e {variable}]"
    ),
    "disk-use": Suggestion(HOST, "df -h {folder}; du -xsh {folder}/*"),
    "folder-rights": Suggestion(HOST, "ls -ld {folder}; findmnt -T {folder}"),
    "gpu-clocks": Suggestion(HOST, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"),
    "gpu-ecc": Suggestion(HOST, "nvidia-smi -q -d ECC"),
    "gpu-persistence": Suggestion(HOST, "sudo nvidia-smi -pm 1"),
    "gpu-power": Suggestion(HOST, "sudo nvidia-smi -i {index} -pl {watts}"),
    "gpu-report": Suggestion(HOST, "nvidia-smi -q"),
    "gpu-reset": Suggestion(HOST, "sudo nvidia-smi -r -i {index}"),
    "gpus": Suggestion(HOST, "nvidia-smi"),
    "kill": Suggestion(HOST, "kill {pids}"),
    "link-errors": Suggestion(HOST, "ip -s link"),
    "measure-client": Suggestion(HOST, "iperf3 -c {address}"),
    "measure-server": Suggestion(HOST, "iperf3 -s -1"),
    "ping": Suggestion(HOST, "ping -c 3 -M do -s {size} {address}"),
    "processes": Suggestion(HOST, "ps -eo pcpu,pid,user,args --sort=-pcpu | head"),
    "uptime": Suggestion(HOST, "uptime"),
}

_NAME = r"(?!-)[^\x00-\x1f\x7f]{1,65536}"
#: The field of a marker with the host for a command in a host's shell.
ON = "on"
#: Patterns for the fields.
FIELDS: Mapping[str, str] = {
    "address": _NAME,
    "age": r"[0-9]{1,6}[hdw]",
    "folder": r"[~/][^\x00-\x1f\x7f]{0,4095}",
    "hosts": _NAME,
    "index": r"[0-9]{1,4}",
    "job": records.JOB_PATTERN.pattern,
    ON: _NAME,
    "pids": r"[0-9]{1,10}(?: [0-9]{1,10})*",
    "size": r"[0-9]{1,6}",
    "tags": r"[a-z_]+(?:,[a-z_]+)*",
    "variable": r"[a-z_]+=[\w./-]+",
    "watts": r"[0-9]{1,5}(?:\.[0-9]{1,3})?",
}
MARKER = re.compile(r"<suggest (?P<name>[a-z-]+)(?P<fields>(?: [a-z]+=[^ <>]*)*)>")


def suggest(name: str, **fields: object) -> str:
    """Return the marker for a command. Raise ValueError if its name or a field is invalid."""
    check(name, {field: str(value) for field, value in fields.items()})
    from urllib.parse import quote  # slow to import

    words = [f"{field}={quote(str(v), safe='')}" for field, v in fields.items()]
    return "<%s>" % " ".join(["suggest", name, *words])


def fields_of(marker: "re.Match[str]") -> Dict[str, str]:
    """Return the fields of a marker by name, decoded but not checked."""
    from urllib.parse import unquote  # slow to import

    pairs = (word.partition("=") for word in marker["fields"].split())
    return {field: unquote(value) for field, _, value in pairs}


def check(name: str, fields: Mapping[str, str]) -> None:
    """Check the name and the fields of a marker.

    Raise ValueError for an unknown name, unknown fields, or invalid values of fields.
    """
    if name not in SUGGESTIONS:
        raise ValueError(f"no command {name!r} is registered")
    for field, value in fields.items():
        is_host = field == ON and SUGGESTIONS[name].program == HOST
        if not is_host and f"{{{field}}}" not in SUGGESTIONS[name].usage:
            raise ValueError(f"{name} has no field {field}")
        if not re.fullmatch(FIELDS[field], value):
            raise ValueError(f"{value!r} is not usable as {field} of {name}")
