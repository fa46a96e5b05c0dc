"""Finds what prevents a process from exiting after its work: threads and child processes."""

from __future__ import annotations

import re
from typing import List

from . import processes

#: Names of threads of TensorFlow and its libraries, which do not prevent Python from exiting.
_NATIVE = re.compile(
    r"tf_|grpc|event_engine|default-exec|resolver|timer_manager|client_channel|WorkSteal|lifeguard|"
    r"cuda|nccl|jemalloc|bundle_|data_"
)
#: Maximum number of threads and children to name, and characters of each.
_NAMED, _LENGTH = 3, 80


def describe(pid: int) -> List[str]:
    """Describe the threads of a process, except the main thread, and its child processes.

    If there are none, describe the main thread. Python 3.14 and later pass the names of threads to
    the kernel. Threads of earlier versions have the name of the process.
    """
    main = processes.read_text(processes.PROC, str(pid), "comm").strip()
    names = [
        processes.read_text(processes.PROC, str(pid), "task", thread, "comm").strip()
        for thread in processes.numbers(processes.PROC, str(pid), "task")
        if int(thread) != pid
    ]
    own = sorted({name for name in names if name not in ("", main) and not _NATIVE.match(name)})
    unnamed = names.count(main)
    found = ["thread %r" % name for name in own[:_NAMED]]
    if unnamed:
        found.append("%d other thread%s" % (unnamed, "s" if unnamed > 1 else ""))
    children = processes.descendants([pid], processes.snapshot())
    found += [
        "process %d (%s)" % (child, processes.command(child)[:_LENGTH])
        for child in sorted(children)[:_NAMED]
    ]
    return found or ["its main thread"]
