#!/usr/bin/python
"""Ansible module: an nftables table that keeps strangers off TensorFlow's ports.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall
short_description: Let only members of the cluster open connections to TensorFlow's ports
description:
  - Keeps a table of its own, C(inet train), in nftables. Nothing else of the host's rules is read,
    changed or flushed.
  - New rules hold for C(confirm_timeout) seconds. Then the host takes them back by itself, unless
    Ansible has confirmed them over a new connection. Only rules that were confirmed are written
    where the next start of the host loads them. V(present) does this in one task, by the action
    plugin of the same name.
options:
  state:
    description:
      - V(look) compares and changes nothing, V(present) makes what differs, V(absent) removes all
        that the module brought. V(applied) and V(confirmed) are the halves of V(present).
    type: str
    choices: [look, present, applied, confirmed, absent]
    default: present
  members:
    description:
      - The cluster's machines, each a list of names and addresses. Names are looked up on the host.
        At least one of each list must have an address.
    type: list
    elements: list
    default: []
  sources:
    description: Addresses, networks and names that may connect as well.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports and ranges (V(20000-20010)).
    type: list
    elements: str
    default: []
  confirm_timeout:
    description: Seconds after which rules that were not confirmed are taken back.
    type: int
    default: 30
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Keep strangers off port 12345
  firewall:
    members: [[192.0.2.11], [node-2.lab, 192.0.2.12]]
    ports: ["12345"]
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
  sample: ["the table inet train is not loaded"]
installed:
  description: Whether nft is there.
  type: bool
  returned: success
family:
  description: V(debian), V(redhat) or empty for others.
  type: str
  returned: success
"""

import concurrent.futures
import contextlib
import hashlib
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from ansible.module_utils.basic import AnsibleModule

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

TABLE = "train"
FOLDER = "/etc/train-firewall"
#: The rules that hold; the rules that wait to be confirmed; how nft lists the former once loaded.
RULES = FOLDER + "/rules.nft"
PENDING = FOLDER + "/pending.nft"
LISTED = FOLDER + "/listed.sha256"
UNIT = "train-firewall.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
ENABLED = "/etc/systemd/system/sysinit.target.wants/" + UNIT
DROP_IN_FILE = "/etc/systemd/system/nftables.service.d/train-firewall.conf"
GUARD = "train-firewall-guard"
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"

RULES_TEXT = """\
# Written by the role firewall. In one transaction, the table is replaced by this one.
table inet {table}
delete table inet {table}
table inet {table} {{
{sets}
\tchain input {{
\t\ttype filter hook input priority filter - 5; policy accept;
\t\tiifname "lo" accept
\t\tip saddr @members4 accept
\t\tip6 saddr @members6 accept
\t\t# Packets that open a connection; what is open stays open, and nothing is tracked.
\t\ttcp dport @ports tcp flags & (fin | syn | rst | ack) == syn counter reject with tcp reset
\t}}
}}
"""

UNIT_TEXT = """\
# Written by the role firewall.
[Unit]
Description=Connections to TensorFlow's ports from the cluster only
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
After=nftables.service
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {rules}
ExecReload={nft} -f {rules}
ExecStop=-{nft} delete table inet {table}

[Install]
WantedBy=sysinit.target
"""

DROP_IN_TEXT = """\
# Written by the role firewall. This service flushes all rules of the host, whoever made them, when
# it is started, reloaded or stopped: those for TensorFlow's ports are loaded again.
[Service]
ExecStartPost=-{nft} -f {rules}
ExecReload=-{nft} -f {rules}
ExecStopPost=-{nft} -f {rules}
"""


class FirewallError(Exception):
    """The rules cannot be made or loaded; the message says why, and what to do."""


def parse_ports(texts: Iterable[str]) -> List[Tuple[int, int]]:
    """Return ports and ranges as sorted pairs that neither meet nor overlap.

    Raises:
        FirewallError: one is no port.
    """
    pairs = []
    for text in texts:
        first, _, last = str(text).replace(" ", "").partition("-")
        try:
            pair = int(first), int(last or first)
        except ValueError:
            pair = (0, 0)
        if not 1 <= pair[0] <= pair[1] <= 65535:
            raise FirewallError(
                "port %r: use a number from 1 to 65535 or a range such as 20000-20010" % str(text)
            )
        pairs.append(pair)
    merged: List[Tuple[int, int]] = []
    for first_port, last_port in sorted(pairs):
        if merged and first_port <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last_port)
        else:
            merged.append((first_port, last_port))
    return merged


def parse_network(text: str) -> Optional[Network]:
    """Return an address or network; None where it is a name."""
    try:
        return ipaddress.ip_network(text.strip("[]").partition("%")[0], strict=False)
    except ValueError:
        return None


def resolve(name: str) -> List[Network]:
    """Return the addresses of a name or an address; none where it has none."""
    network = parse_network(name)
    if network:
        return [network]
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return []
    return [ipaddress.ip_network(str(answer[4][0]).partition("%")[0]) for answer in answers]


def find_members(members: List[List[str]], sources: List[str]) -> List[Network]:
    """Return the networks of all members and sources, sorted, without those of this host alone.

    Raises:
        FirewallError: one has no address.
    """
    groups = members + [[source] for source in sources]
    names = sorted({name for group in groups for name in group})
    # At once: a name server that is slow, or down, is so for every name.
    with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
        unknown = [name for name in names if not parse_network(name)]
        answers = {name: pool.submit(resolve, name) for name in unknown}
    found = {name: answers[name].result() if name in answers else resolve(name) for name in names}
    for kind, remedy in (
        (members, "set train_job_address of those ranks to an address that every host knows"),
        ([[source] for source in sources], "correct firewall_extra_sources"),
    ):
        lost = [" or ".join(group) for group in kind if not any(found[name] for name in group)]
        if lost:
            raise FirewallError("this host cannot resolve %s: %s" % (", ".join(lost), remedy))
    networks = {
        network
        for group in groups
        for name in group
        for network in found[name]
        if not network.is_loopback
    }
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    return [*v4, *v6]


def set_text(name: str, kind: str, elements: List[str]) -> str:
    """Return a set in nft's language."""
    lines = ["\tset %s {" % name, "\t\ttype %s" % kind, "\t\tflags interval"]
    if elements:
        lines.append("\t\telements = {\n\t\t\t%s\n\t\t}" % ",\n\t\t\t".join(elements))
    return "\n".join([*lines, "\t}"])


def rules_text(networks: List[Network], ports: List[Tuple[int, int]]) -> str:
    """Return the file of the rules, the same for the same members and ports."""
    shown = {4: [], 6: []}  # type: Dict[int, List[str]]
    for network in networks:
        single = network.num_addresses == 1
        shown[network.version].append(str(network.network_address if single else network))
    numbers = ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in ports]
    sets = [
        set_text("members4", "ipv4_addr", shown[4]),
        set_text("members6", "ipv6_addr", shown[6]),
        set_text("ports", "inet_service", numbers),
    ]
    return RULES_TEXT.format(table=TABLE, sets="\n".join(sets))


def unit_texts(nft: str) -> Dict[str, str]:
    """Return the files for systemd by path: the unit that loads the rules when the host starts."""
    names = {"nft": nft, "rules": RULES, "table": TABLE}
    return {
        UNIT_FILE: UNIT_TEXT.format(**names),
        DROP_IN_FILE: DROP_IN_TEXT.format(**names),
    }


def strip(value: Any) -> Any:
    """Return what nft lists as JSON, without what differs from one loading to the next."""
    if isinstance(value, dict):
        return {
            key: None if key == "counter" else strip(item)
            for key, item in value.items()
            if key not in ("handle", "metainfo")
        }
    return [strip(item) for item in value] if isinstance(value, list) else value


def listed_hash(listing: str) -> str:
    """Return a hash of ``nft -j list table``, the same as long as nobody changes the table.

    Versions of nft list the same rules in different forms: the hash is compared only with one that
    was taken on the same host.
    """
    entries = [strip(entry) for entry in json.loads(listing)["nftables"]]
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def run(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Raises:
        FirewallError: it fails, and ``check`` is true.
    """
    done = subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        check=False,
    )
    if check and done.returncode:
        raise FirewallError(
            "`%s` ended with %d: %s" % (" ".join(arguments), done.returncode, done.stderr.strip())
        )
    return done


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file in one step."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def list_table(nft: str) -> str:
    """Return the table as JSON, empty where it is not loaded.

    Raises:
        FirewallError: nft cannot tell.
    """
    done = run(nft, "-j", "list", "table", "inet", TABLE, check=False)
    if done.returncode == 0:
        return done.stdout
    if "No such file or directory" in done.stderr:
        return ""
    raise FirewallError(
        "nft cannot list its tables: %s. The host's kernel must have nf_tables, and a container the"
        " capability NET_ADMIN; or leave the role firewall out." % done.stderr.strip()
    )


def warnings_of(nft: str) -> List[str]:
    """Return what to tell of other tables: what they drop, an accept of ours does not save."""
    done = run(nft, "-j", "list", "chains", check=False)
    tables = set()
    for entry in json.loads(done.stdout)["nftables"] if done.returncode == 0 else []:
        chain = entry.get("chain", {})
        refuses = chain.get("policy") == "drop" or chain.get("table") == "firewalld"
        if chain.get("hook") == "input" and refuses and chain["table"] != TABLE:
            tables.add("%s %s" % (chain["family"], chain["table"]))
    return [
        "the table %s of this host (firewalld, ufw or rules of your own) refuses what it does not"
        " allow, members of the cluster included: allow them the ports there, too (firewall-cmd"
        " --add-rich-rule, ufw allow from)" % name
        for name in sorted(tables)
    ]


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
            elif listed_hash(listing) != read(LISTED):
                differences.append("the table inet %s is not the one that was confirmed" % TABLE)
        if read(RULES) != self.rules:
            differences.append("%s has other rules" % RULES)
        for path, text in self.units.items():
            if read(path) != text:
                differences.append("%s has another content" % path)
        if not os.path.islink(ENABLED):
            differences.append("%s is not enabled" % UNIT)
        families = {"debian": "/etc/debian_version", "redhat": "/etc/redhat-release"}
        return {
            "changed": False,
            "ready": not differences,
            "differences": differences,
            "installed": bool(self.nft),
            "family": next((name for name in families if os.path.exists(families[name])), ""),
        }

    def apply(self, dry: bool) -> Dict[str, Any]:
        """Load what differs, with a guard that takes it back.

        Raises:
            FirewallError: it cannot be loaded; then nothing has changed.
            OSError: a file cannot be written.
        """
        result = self.look()
        result["diff"] = {
            "before": read(RULES),
            "after": self.rules,
            "before_header": RULES,
            "after_header": RULES,
        }
        if result["ready"]:
            return result
        result["changed"] = True
        if dry:
            return result
        if not self.nft:
            raise FirewallError("nftables is not installed: install the package nftables")
        stop_guard()
        write(PENDING, self.rules)
        run(self.nft, "--check", "--file", PENDING)
        start_guard(self.nft, self.timeout)
        run(self.nft, "--file", PENDING)
        return result

    def confirm(self) -> Dict[str, Any]:
        """Let the loaded rules hold, now and after the next start of the host.

        Raises:
            FirewallError: they were taken back.
            OSError: a file cannot be written.
        """
        stop_guard()
        if read(PENDING) != self.rules:
            raise FirewallError(
                "the new rules were taken back after %d s, because Ansible could not connect again;"
                " the former ones hold" % self.timeout
            )
        for path, text in self.units.items():
            write(path, text)
        write(RULES, self.rules)
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", "--quiet", UNIT)
        # Loads the file once more: what runs is what the next start brings, whatever the guard did.
        run("systemctl", "reload-or-restart", UNIT)
        # Last: a run that was cut off before it is seen as one.
        write(LISTED, listed_hash(list_table(self.nft)))
        remove(PENDING)
        return {"changed": True, "ready": True}


def start_guard(nft: str, seconds: int) -> None:
    """Have systemd take the rules back after ``seconds``."""
    back = (
        "if [ -f {rules} ]; then {nft} -f {rules}; else {nft} delete table inet {table}; fi;"
        " rm -f {pending}"
    ).format(rules=RULES, nft=nft, table=TABLE, pending=PENDING)
    run(
        *("systemd-run", "--quiet", "--unit=" + GUARD, "--timer-property=AccuracySec=100ms"),
        *("--on-active=%ds" % seconds, "/bin/sh", "-c", back),
    )


def stop_guard() -> None:
    """Stop the guard; where it is at work, wait for its end."""
    run("systemctl", "stop", GUARD + ".timer", check=False)
    while run("systemctl", "is-active", GUARD + ".service", check=False).stdout.strip() in (
        "active",
        "activating",
        "deactivating",
    ):
        time.sleep(0.1)
    # A name of a unit that failed cannot be taken again.
    run("systemctl", "reset-failed", GUARD + ".service", GUARD + ".timer", check=False)


def remove_all(dry: bool) -> Dict[str, Any]:
    """Remove the table, the unit and the files.

    Raises:
        FirewallError: nft or systemctl fails.
    """
    nft = shutil.which("nft", path=SEARCH_PATH)
    paths = [path for path in (FOLDER, UNIT_FILE, DROP_IN_FILE) if os.path.exists(path)]
    changed = bool(paths)
    if changed and not dry:
        stop_guard()
        if UNIT_FILE in paths:
            run("systemctl", "disable", "--quiet", "--now", UNIT)
        for path in (UNIT_FILE, DROP_IN_FILE):
            remove(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(DROP_IN_FILE))
        run("systemctl", "daemon-reload")
        if nft and list_table(nft):
            run(nft, "delete", "table", "inet", TABLE)
        shutil.rmtree(FOLDER, ignore_errors=True)
    return {"changed": changed, "ready": not changed}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "choices": ["look", "present", "applied", "confirmed", "absent"],
                "default": "present",
            },
            "members": {"type": "list", "elements": "list", "default": []},
            "sources": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "str", "default": []},
            "confirm_timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    state = module.params["state"]
    try:
        if state == "absent":
            module.exit_json(**remove_all(module.check_mode))
        firewall = Firewall(module.params)
        if state == "look":
            module.exit_json(**firewall.look())
        if state == "applied":
            result = firewall.apply(module.check_mode)
            for text in warnings_of(firewall.nft) if result["changed"] and firewall.nft else []:
                module.warn(text)
            module.exit_json(**result)
        if state == "confirmed" and not module.check_mode:
            module.exit_json(**firewall.confirm())
        if state == "confirmed":
            module.exit_json(changed=True)
        module.fail_json(msg="state present is the action plugin's, which is not in action_plugins")
    except FirewallError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become, on a disk with space" % error)


if __name__ == "__main__":
    main()
