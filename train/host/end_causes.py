"""Why a rank's script ended, by the names in ``state.json``.

These names are separate from ``ends``, which is slow to import, because calls need them.
"""

from __future__ import annotations

#: The causes in ``state.json``. The control node adds others that only it can detect.
EXIT = "exit"  # an exit code other than 0
SIGNAL = "signal"  # killed by a signal that did not come from the launcher
MEMORY = "memory"  # its host, its control group or its GPU had no memory left
DISK = "disk"  # its disk was full
DOWNLOAD = "download"  # it could not reach a server for a download
START_TIMEOUT = "start_timeout"  # it did not open its port
HUNG = "hung"  # it no longer made steps
LINGERED = "lingered"  # it had made all of its steps but did not exit
MAX_RUNTIME = "max_runtime"
STOPPED = "stopped"  # a user stopped it
PREEMPTED = "preempted"  # its host will be reclaimed
SUPERVISOR = "supervisor"  # its supervisor was killed
INTERNAL = "internal"  # its supervisor failed
REBOOT = "reboot"  # its host was restarted
UNSTARTABLE = "unstartable"  # the interpreter could not be run
BUSY = "fenced"  # another job holds its port or GPU; the word of stored results
