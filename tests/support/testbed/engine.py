"""The Docker engine, by its command-line client, and other programs."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import Any


class TestbedError(Exception):
    """The test bed cannot do what was asked; the message has the reason."""

    __test__ = False  # no test class, whatever pytest thinks of its name


def run(
    *command: str, stdin: str = "", check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program, root's own among them, and return what it printed; ``timeout`` is in seconds.

    Raises:
        TestbedError: there is no such program, it took too long, or (with ``check``) it failed.
    """
    shown = " ".join(command)
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C", "PATH": path},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError(f"no `{command[0]}` command in PATH: install it") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"`{shown}` took longer than {timeout:.0f} s") from None
    if check and done.returncode:
        reason = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-15:])
        raise TestbedError(f"`{shown}` failed (exit code {done.returncode}):\n{reason}")
    return done


def docker(*arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the Docker client; see `run`."""
    return run("docker", *arguments, **given)


@functools.cache
def docker_available() -> bool:
    """Return whether a Docker engine answers."""
    try:
        return docker("version", check=False, timeout=20).returncode == 0
    except TestbedError:
        return False
