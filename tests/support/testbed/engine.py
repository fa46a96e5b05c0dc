"""The Docker engine, by its command-line client."""

from __future__ import annotations

import subprocess


class TestbedError(Exception):
    """The test bed cannot do what was asked; the message has the reason."""

    __test__ = False  # no test class, whatever pytest thinks of its name


def docker(
    *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the Docker client and return what it printed; ``timeout`` is in seconds.

    Raises:
        TestbedError: there is no client, it took too long, or (with ``check``) it failed.
    """
    command = " ".join(["docker", *arguments])
    try:
        done = subprocess.run(
            ["docker", *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError("no `docker` command in PATH: install the Docker client") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"`{command}` took longer than {timeout:.0f} s") from None
    if check and done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        raise TestbedError(f"`{command}` failed (exit code {done.returncode}):\n{reason}")
    return done


def docker_available() -> bool:
    """Return whether a Docker engine answers."""
    try:
        return docker("version", check=False, timeout=20).returncode == 0
    except TestbedError:
        return False
