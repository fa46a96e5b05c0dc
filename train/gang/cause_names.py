"""Causes that only the control node can detect. The others are in host/end_causes.py."""

from __future__ import annotations

from train.host import end_causes

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
PLANNED = frozenset({GROWN, end_causes.PREEMPTED})

#: All causes.
CAUSES = frozenset(
    {
        *(UNREACHABLE, NOT_STARTED, FROZEN, NETWORK, ADDRESS, BLOCKED, PROXY, WEIGHTS, LEFT, ALONE),
        GROWN,
        *(
            end_causes.EXIT,
            end_causes.SIGNAL,
            end_causes.MEMORY,
            end_causes.DISK,
            end_causes.DOWNLOAD,
            end_causes.START_TIMEOUT,
        ),
        *(
            end_causes.HUNG,
            end_causes.LINGERED,
            end_causes.MAX_RUNTIME,
            end_causes.PREEMPTED,
            end_causes.STOPPED,
            end_causes.SUPERVISOR,
        ),
        *(end_causes.INTERNAL, end_causes.REBOOT, end_causes.UNSTARTABLE, end_causes.BUSY),
    }
)
