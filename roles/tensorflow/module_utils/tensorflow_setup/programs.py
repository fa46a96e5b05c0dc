"""Programs that the module starts, and the message where one fails."""

from __future__ import annotations

import re
import subprocess
from typing import Dict, List, Optional, Tuple


class SetupError(Exception):
    """What the host cannot do, with the limit and the remedy; the module's ``msg``."""


def run(
    command: List[str],
    held: int,
    environment: Optional[Dict[str, str]] = None,
    timeout: Optional[float] = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that shares the lock."""
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
    """The last lines of a program's standard error, as they go into a message."""
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-10:])


def numbers(version: str) -> Tuple[int, ...]:
    """A version's numbers, which compare as versions do."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))
