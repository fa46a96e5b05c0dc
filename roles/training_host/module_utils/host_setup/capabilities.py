"""What the processes of a host may do at all: in a container, less than root's everything."""

from __future__ import annotations

import re

#: Bits of a capability set (capabilities(7)): may raise limits above its own; may set the clock.
CAP_SYS_RESOURCE = 24
CAP_SYS_TIME = 25


def may_have(capability: int, status: str) -> bool:
    """Return whether a process with this ``/proc/PID/status`` can have a capability."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return not found or bool(int(found.group(1), 16) >> capability & 1)
