"""systemd's units: chrony's, and those of other time daemons."""

from __future__ import annotations

import subprocess
from typing import Dict, List

OTHERS = ["systemd-timesyncd", "ntp", "ntpd", "ntpsec", "openntpd"]


def show_units(unit: str) -> str:
    """Return what ``systemctl show`` says of chrony's unit and of other time daemons."""
    return subprocess.run(
        [
            *("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState"),
            *(unit, *OTHERS),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.decode()


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
