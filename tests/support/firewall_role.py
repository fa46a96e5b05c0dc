"""What the tests of the role ``firewall`` share: its hosts, and a playbook of somebody else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY
from tests.support.testbed import Host, Testbed

LISTEN = "systemd-run --quiet --collect --unit=rank python3 -m http.server 12345"


def play(bed: Testbed, *options: str, part: str = "main", module: Any = None, **given: Any) -> str:
    """Run the role, or only its module, on all hosts; return what Ansible shows."""
    members = [[host.name, host.address] for host in bed.hosts]
    variables = {"firewall_members": members, "firewall_ports": [12345], **given}
    variables = {name: value for name, value in variables.items() if value is not None}
    role = {"ansible.builtin.import_role": {"name": "firewall", "tasks_from": part}}
    tasks = [{**role, "when": not module}, {"firewall": module, "become": True}]
    site = {"hosts": "worker", "gather_facts": False, "vars": variables}
    path = bed.directory / "site.json"
    path.write_text(json.dumps([{**site, "tasks": tasks if module else [role]}]))
    program = Path(sys.executable).parent / "ansible-playbook"
    # None of this repository's settings.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [str(program), "-i", str(bed.directory / "inventory"), str(path), *options],
        cwd=bed.directory,
        env={**kept, "ANSIBLE_ROLES_PATH": str(REPOSITORY / "roles"), "COLUMNS": "10000"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def counts(shown: str, name: str = "changed") -> list[int]:
    """Return a column of Ansible's recap."""
    return [int(count) for count in re.findall(rf"^host-.* {name}=(\d+)", shown, re.MULTILINE)]


def root(bed: Testbed, number: int, command: str) -> str:
    """Run a shell's command as root on a host."""
    return bed.exec(bed.hosts[number], "sh", "-c", command, user="root", timeout=300).stdout


def tables(bed: Testbed) -> list[str]:
    """Return the role's table on each host; empty where there is none."""
    listing = "nft --stateless list table inet train || true"
    return [root(bed, number, listing) for number in range(len(bed.hosts))]


def connect(bed: Testbed, source: Host, target: Host, port: int = 12345) -> str:
    """Connect from one host to another; return the error, if any."""
    code = f"import socket; socket.create_connection(({target.address!r}, {port}), 3)"
    done = bed.exec(source, "python3", "-c", code, check=False)
    return done.stderr.strip().rpartition("\n")[2]
