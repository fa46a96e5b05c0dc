"""What the tests of the role ``firewall`` share: its hosts, and a playbook of somebody else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY
from tests.testbed import Host, Testbed

BIN = Path(sys.executable).parent
LISTEN = "systemd-run --quiet --collect --unit=rank python3 -m http.server 12345"


def ansible(program: str, bed: Testbed, *words: str) -> str:
    """Run Ansible from a folder without settings; return what it shows on one line."""
    role = REPOSITORY / "roles/firewall"
    settings = {
        "ANSIBLE_ROLES_PATH": str(role.parent),
        # For the module alone; a playbook finds these by the role.
        "ANSIBLE_LIBRARY": str(role / "library"),
        "ANSIBLE_MODULE_UTILS": str(role / "module_utils"),
        "COLUMNS": "10000",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    if program == "ansible-playbook":
        del settings["ANSIBLE_LIBRARY"], settings["ANSIBLE_MODULE_UTILS"]
    done = subprocess.run(
        [str(BIN / program), "-i", str(bed.directory / "inventory"), *words],
        cwd=bed.directory,
        env={**kept, **settings, "PATH": f"{BIN}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def play(bed: Testbed, *options: str, part: str = "main", **given: Any) -> str:
    """Run the role on all hosts; return what Ansible shows."""
    members = [[host.name, host.address] for host in bed.hosts]
    variables = {"firewall_members": members, "firewall_ports": [12345], **given}
    variables = {name: value for name, value in variables.items() if value is not None}
    role = {"ansible.builtin.include_role": {"name": "firewall", "tasks_from": part}}
    site = [{"hosts": "worker", "gather_facts": False, "vars": variables, "tasks": [role]}]
    path = bed.directory / "site.json"
    path.write_text(json.dumps(site))
    return ansible("ansible-playbook", bed, str(path), *options)


def counts(shown: str, name: str = "changed") -> list[int]:
    """Return a column of Ansible's recap."""
    return [int(count) for count in re.findall(rf"^host-.* {name}=(\d+)", shown, re.MULTILINE)]


def table(bed: Testbed, host: Host) -> str:
    """Return the role's table; empty where there is none."""
    listing = ("nft", "--stateless", "list", "table", "inet", "train")
    return bed.exec(host, *listing, user="root", check=False).stdout


def connect(bed: Testbed, source: Host, target: Host, port: int = 12345) -> str:
    """Connect from one host to another; return the error, if any."""
    code = f"import socket; socket.create_connection(({target.address!r}, {port}), 3)"
    done = bed.exec(source, "python3", "-c", code, check=False)
    return done.stderr.strip().rpartition("\n")[2]
