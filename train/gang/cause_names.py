"""Causes of failures that only the control node can detect. The others are in host/ends.py."""

from __future__ import annotations

from train.host import ends

UNREACHABLE = "unreachable"
NOT_STARTED = "not_started"
FROZEN = "frozen"
NETWORK = "network"
ADDRESS = "address"
BLOCKED = "blocked"
PROXY = "proxy"
WEIGHTS = "weights"
LEFT = "left"
ALONE = "alone"
#: Not a failure: the gang was stopped to continue with more hosts.
GROWN = "grown"

#: Causes with which an attempt ends although nothing failed, and after which another one follows.
PLANNED = frozenset({GROWN, ends.PREEMPTED})

#: All causes.
CAUSES = frozenset(
    {
        *(UNREACHABLE, NOT_STARTED, FROZEN, NETWORK, ADDRESS, BLOCKED, PROXY, WEIGHTS, LEFT, ALONE),
        GROWN,
        *(ends.EXIT, ends.SIGNAL, ends.MEMORY, ends.DISK, ends.DOWNLOAD, ends.START_TIMEOUT),
        *(ends.HUNG, ends.LINGERED, ends.MAX_RUNTIME, ends.STOPPED, ends.SUPERVISOR),
        ends.PREEMPTED,
        *(ends.INTERNAL, ends.REBOOT, ends.UNSTARTABLE, ends.BUSY),
    }
)
