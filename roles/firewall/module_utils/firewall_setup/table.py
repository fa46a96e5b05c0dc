"""The table on a host: compared, loaded with a timer, confirmed, removed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from typing import Any, Dict, List

from .programs import FirewallError, run
from .rules import TABLE

DIRECTORY = "/etc/train-firewall"
#: The rules in force; those that wait to be confirmed; how nft lists the former once loaded.
RULES = DIRECTORY + "/rules.nft"
PENDING = DIRECTORY + "/pending.nft"
LISTED = DIRECTORY + "/listed.sha256"
#: The timer and service of systemd that take unconfirmed rules back.
GUARD = "train-firewall-guard"
TAKE_BACK = (
    "if [ -f {rules} ]; then {nft} -f {rules}; else {nft} delete table inet {table}; fi;"
    " rm -f {pending}"
)


def compare(nft: str, rules: str) -> List[str]:
    """Return what differs from the wanted rules, each in a few words.

    Raises:
        FirewallError: nft cannot list its tables, or no systemd runs.
        OSError: a file cannot be read.
    """
    if not os.path.isdir("/run/systemd/system"):
        raise FirewallError(
            "no systemd runs on this host: the role firewall needs it to load the rules when the"
            " host starts, and to take back rules that lock Ansible out"
        )
    differences = []
    listing = list_table(nft) if nft else ""
    if not nft:
        differences.append("nftables is not installed")
    elif not listing:
        differences.append("the table inet %s is not loaded" % TABLE)
    elif listed_hash(listing) != read(LISTED):
        differences.append("the table inet %s is not the one that was confirmed" % TABLE)
    if read(RULES) != rules:
        differences.append("%s has other rules" % RULES)
    return differences


def apply(nft: str, rules: str, timeout: int) -> str:
    """Load the rules, with a timer that takes them back; return the token that confirms them.

    Raises:
        FirewallError: they cannot be loaded; then nothing has changed.
        OSError: a file cannot be written.
    """
    if not nft:
        raise FirewallError("nftables is not installed: install the package nftables")
    check(nft, rules)
    stop_guard()
    os.makedirs(DIRECTORY, mode=0o755, exist_ok=True)
    write(PENDING, rules)
    back = TAKE_BACK.format(rules=RULES, nft=nft, table=TABLE, pending=PENDING)
    run(
        *("systemd-run", "--quiet", "--unit=" + GUARD, "--timer-property=AccuracySec=100ms"),
        *("--on-active=%ds" % timeout, "/bin/sh", "-c", back),
    )
    run(nft, "--file", PENDING)
    return hashlib.sha256(rules.encode()).hexdigest()


def confirm(nft: str, token: str, timeout: int) -> None:
    """Keep the loaded rules, now and after the next start of the host.

    Raises:
        FirewallError: they were taken back.
        OSError: a file cannot be written.
    """
    stop_guard()
    pending = read(PENDING)
    if not pending or hashlib.sha256(pending.encode()).hexdigest() != token:
        raise FirewallError(
            "the new rules were taken back after %d s, because Ansible did not confirm them in"
            " time; the former ones hold. Another host of the play may have been slow: set a"
            " larger firewall_confirm_timeout" % timeout
        )
    # Without the hash, the next run loads the rules once more: so it is when this one is cut off.
    remove(LISTED)
    os.replace(PENDING, RULES)
    write(LISTED, listed_hash(list_table(nft)))


def remove_all(nft: str, dry: bool) -> bool:
    """Remove the table and the files; return whether there was one of them."""
    loaded = nft and not run(nft, "list", "table", "inet", TABLE, check=False).returncode
    if not loaded and not os.path.exists(DIRECTORY):
        return False
    if not dry:
        stop_guard()
        if loaded:
            run(nft, "delete", "table", "inet", TABLE)
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    return True


def check(nft: str, rules: str) -> None:
    """Have nft check the rules.

    Raises:
        FirewallError: it refuses them.
    """
    run(nft, "--check", "--file", "-", stdin=rules)


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


def list_table(nft: str) -> str:
    """Return the table as JSON, empty where it is not loaded.

    Raises:
        FirewallError: nft cannot list its tables.
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


def listed_hash(listing: str) -> str:
    """Return a hash of ``nft -j list table``, the same as long as nobody changes the table.

    Versions of nft list the same rules in different forms: the hash is compared only with one that
    was taken on the same host.
    """
    entries = [strip(entry) for entry in json.loads(listing)["nftables"]]
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def strip(value: Any) -> Any:
    """Return what nft lists as JSON, without what differs from one loading to the next."""
    if isinstance(value, dict):
        return {
            key: None if key == "counter" else strip(item)
            for key, item in value.items()
            if key not in ("handle", "metainfo")
        }
    return [strip(item) for item in value] if isinstance(value, list) else value


def diff(differences: List[str], rules: str) -> List[Dict[str, str]]:
    """Return Ansible's diff of the file of the rules and, in words, of the rest."""
    shown = [{"before": read(RULES), "after": rules}]
    shown[0].update(before_header=RULES, after_header=RULES)
    rest = [text for text in differences if RULES not in text]
    if rest:
        shown.append({"prepared": "".join("- %s\n" % text for text in rest)})
    return shown


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file in one step."""
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
