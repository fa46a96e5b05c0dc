"""Compare, load, confirm and remove the table and its files on a host."""

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
#: The confirmed rules, nft's listing of them, and rules that are not confirmed yet.
RULES = DIRECTORY + "/rules.nft"
LISTED = DIRECTORY + "/listed.nft"
PENDING = DIRECTORY + "/pending.nft"
#: The systemd timer and service that revert unconfirmed rules.
GUARD = "train-firewall-guard"
TAKE_BACK = (
    "if [ -f {rules} ]; then {nft} -f {rules}; else {nft} delete table inet {table}; fi;"
    " rm -f {pending}"
)


def compare(nft: str, rules: str) -> Tuple[List[str], List[Dict[str, str]]]:
    """Return short descriptions of differences from the wanted rules, and Ansible's diff.

    Raises:
        FirewallError: nft cannot list its tables, or systemd is not running.
    """
    if not os.path.isdir("/run/systemd/system"):
        raise FirewallError(
            "systemd is not running on this host: the role firewall needs it to load the rules at"
            " boot, and to revert rules that lock Ansible out"
        )
    differences, diff = [], []
    if not nft:
        differences.append("nftables is not installed")
        diff.append({"prepared": "- nftables is not installed\n"})
    listed, loaded = read(LISTED), list_table(nft) if nft else ""
    if nft and (not loaded or loaded != listed):
        state = "the confirmed one" if loaded else "loaded"
        differences.append("the table inet %s is not %s" % (TABLE, state))
        diff.append({"before_header": "loaded", "before": loaded, "after": listed})
    before = read(RULES)
    if before != rules:
        differences.append("%s contains different rules" % RULES)
        diff.append({"before_header": RULES, "before": before, "after": rules})
    return differences, [{"after_header": RULES, **part} for part in diff]


def apply(nft: str, rules: str, timeout: int, dry: bool) -> str:
    """Load the rules, start a timer that reverts them, and return the token that confirms them.

    With ``dry``, only check the rules, and return an empty string.

    Raises:
        FirewallError: the rules cannot be loaded. Nothing has changed.
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
    """Keep the loaded rules, also across reboots.

    Raises:
        FirewallError: the rules were already reverted.
    """
    stop_guard()
    pending = read(PENDING)
    if not pending or hashlib.sha256(pending.encode()).hexdigest() != token:
        raise FirewallError(
            "the new rules were reverted after %d s because Ansible did not confirm them in "
            "time; the previous rules are in force. Another host of the play may have been "
            "slow: increase firewall_confirm_timeout" % timeout
        )
    # While it is empty, the next run loads the rules again.
    write(LISTED, "")
    os.replace(PENDING, RULES)
    write(LISTED, list_table(nft))


def remove_all(nft: str, dry: bool) -> bool:
    """Remove the table and the files; return whether any of them existed."""
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
    """Stop the timer; if it has already fired, wait until its service ends."""
    run("systemctl", "stop", GUARD + ".timer", check=False)
    asked = ("systemctl", "is-active", GUARD + ".service")
    while run(*asked, check=False).stdout.strip() in ("active", "activating", "deactivating"):
        time.sleep(0.1)
    # The name of a failed unit cannot be used again.
    run("systemctl", "reset-failed", GUARD + ".service", GUARD + ".timer", check=False)


def list_table(nft: str) -> str:
    """Return nft's listing of the table, without counters, or an empty string if it is not loaded.

    Versions of nft format the same rules differently, so a listing is only compared with one from
    the same host.

    Raises:
        FirewallError: nft cannot list its tables.
    """
    done = run(nft, "--stateless", "list", "table", "inet", TABLE, check=False)
    if done.returncode and "No such file or directory" not in done.stderr:
        raise FirewallError(
            "nft cannot list its tables: %s. The kernel must have nf_tables, and a container needs"
            " the capability NET_ADMIN. Otherwise, skip the role firewall." % done.stderr.strip()
        )
    return done.stdout


def run(*arguments: str, check: bool = True, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Raises:
        FirewallError: the command fails and ``check`` is true.
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
            "`%s` failed with exit code %d: %s"
            % (" ".join(arguments), done.returncode, done.stderr.strip())
        )
    return done


def read(path: str) -> str:
    """Return the text of a file, or an empty string if it does not exist."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file atomically."""
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)
