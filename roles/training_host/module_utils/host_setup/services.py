"""Whether systemd's units are enabled and active."""

from __future__ import annotations

import subprocess
from typing import List


def check_services(names: List[str]) -> List[str]:
    """Return what differs of the units: they must be enabled and active."""
    if not names:
        return []
    shown = subprocess.run(
        ["systemctl", "show", "--property=ActiveState,UnitFileState", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.decode()
    differences = []
    blocks = shown.split("\n\n") + [""] * len(names)
    for index, name in enumerate(names):
        state = dict(line.partition("=")[::2] for line in blocks[index].split())
        if state.get("ActiveState") != "active":
            differences.append("service %s is not active" % name)
        elif state.get("UnitFileState") not in ("enabled", "alias", "static", "generated"):
            differences.append("service %s is not enabled" % name)
    return differences
