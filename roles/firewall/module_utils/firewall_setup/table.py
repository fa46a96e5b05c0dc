"""The table on a host, and its files: compared, loaded with a timer, confirmed, removed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from typing import Dict, List, Tuple

from .rules import TABLE, FirewallError

SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
DIRECTORY = "/etc/train-firewall"
#: The rules in force; how nft lists them once loaded; those that wait to be confirmed.
RULES = DIRECTORY + "/rules.nft"
LISTED = DIRECTORY + "/listed.nft"
PENDING = DIRECTORY + "/pending.nft"
#: The timer and service of systemd that take unconfirmed rules back.
GUARD = "train-firewall-guard"
TAKE_BACK = (
    "if [ -f {rules} ]; then {nft} -f {rules}; else {nft} delete table inet {table}; fi;"
    " rm -f {pending}"
)


def compare(nft: str, rules: str) -> Tuple[List[str], List[Dict[str, str]]]:
    """Return what differs from the wanted rules, each in short, and Ansible's diff.

    Raises:
        FirewallError: nft cannot list its tables, or no systemd runs.
    """
    if not os.path.isdir("/run/systemd/system"):
        raise FirewallError(
            "no systemd runs on this host: the role firewall needs it to load the rules when the"
            " host starts, and to take back rules that lock Ansible out"
        )
    differences, diff = [], []
    if not nft:
        differences.append("nftables is not installed")
        diff.append({"prepared": "- nftables is not installed\n"})
    listed, loaded = read(LISTED), list_table(nft) if nft else ""
    if nft and (not loaded or loaded != listed):
        state = "the one that was confirmed" if loaded else "loaded"
        differences.append("the table inet %s is not %s" % (TABLE, state))
        diff.append({"before_header": "loaded", "before": loaded, "after": listed})
    before = read(RULES)
    if before != rules:
        differences.append("%s has other rules" % RULES)
        diff.append({"before_header": RULES, "before": before, "after": rules})
    return differences, [{"after_header": RULES, **part} for part in diff]


def apply(nft: str, rules: str, timeout: int, dry: bool) -> str:
    """Load the rules, with a timer that takes them back; return the token that confirms them.

    Raises:
        FirewallError: they cannot be loaded; then nothing has changed.
    """
    if nft:
        run(nft, "--check", "--file", "-", stdin=rules)
    if dry:
        return ""
    if not nft:
        raise FirewallError("nftables is not installed: install the package nftables")
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
    """
    stop_guard()
    pending = read(PENDING)
    if not pending or hashlib.sha256(pending.encode()).hexdigest() != token:
        raise FirewallError(
            "the new rules were taken back after %d s, because Ansible did not confirm them in"
            " time; the former ones hold. Another host of the play may have been slow: set a"
            " larger firewall_confirm_timeout" % timeout
        )
    # Until it is written again, the next run loads the rules once more.
    write(LISTED, "")
    os.replace(PENDING, RULES)
    write(LISTED, list_table(nft))


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


def stop_guard() -> None:
    """Stop the guard; where it is at work, wait for its end."""
    run("systemctl", "stop", GUARD + ".timer", check=False)
    asked = ("systemctl", "is-active", GUARD + ".service")
    while run(*asked, check=False).stdout.strip() in ("active", "activating", "deactivating"):
        time.sleep(0.1)
    # A name of a unit that failed cannot be taken again.
    run("systemctl", "reset-failed", GUARD + ".service", GUARD + ".timer", check=False)


def list_table(nft: str) -> str:
    """Return the table as nft lists it, without its counters; empty where it is not loaded.

    Versions of nft list the same rules in different forms: a listing is compared only with one
    that was taken on the same host.
    """
    done = run(nft, "--stateless", "list", "table", "inet", TABLE, check=False)
    if done.returncode and "No such file or directory" not in done.stderr:
        raise FirewallError(
            "nft cannot list its tables: %s. The host's kernel must have nf_tables, and a container"
            " the capability NET_ADMIN; or leave the role firewall out." % done.stderr.strip()
        )
    return done.stdout


def run(*arguments: str, check: bool = True, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Raises:
        FirewallError: it fails, and ``check`` is true.
    """
    done = subprocess.run(
        arguments,
        input=stdin,
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
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)
