"""The guard: takes new rules back on the host unless it is stopped in time."""

from __future__ import annotations

import time

from . import places
from .nft import TABLE
from .programs import run

GUARD = "train-firewall-guard"


def start_guard(nft: str, seconds: int) -> None:
    """Have systemd take the rules back after ``seconds``."""
    back = (
        "if [ -f {rules} ]; then {nft} -f {rules}; else {nft} delete table inet {table}; fi;"
        " rm -f {pending}"
    ).format(rules=places.RULES, nft=nft, table=TABLE, pending=places.PENDING)
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
