"""Programs that the module starts, and the message where one fails."""

from __future__ import annotations

import os
import subprocess
from typing import Dict, List, Optional

#: Lines of a program's standard error that go into a message.
TAIL_LINES = 10


class SetupError(Exception):
    """What the host cannot do, with the limit and the remedy; the module's ``msg``."""


def run(
    command: List[str],
    held: int,
    changes: Optional[Dict[str, Optional[str]]] = None,
    timeout: Optional[float] = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that shares the lock, with a changed environment (None removes)."""
    merged: Dict[str, Optional[str]] = {**os.environ, **(changes or {})}
    environment = {name: value for name, value in merged.items() if value is not None}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=environment,
        pass_fds=(held,),
        timeout=timeout,
    )


def ending(returncode: int) -> str:
    """How a program ended, as a part of a sentence."""
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def tail(errors: bytes) -> str:
    """The last lines of a program's standard error; of warnings that repeat the last one."""
    lines = [""]
    for line in errors.decode(errors="replace").splitlines():
        if line.startswith("WARNING: ") and line[:18] == lines[-1][:18]:
            lines.pop()
        if line.strip():
            lines.append(line)
    return "\n".join(lines[1:][-TAIL_LINES:])
