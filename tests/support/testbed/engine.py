"""The Docker engine, through its command-line client, and the images of hosts.

A base image that Docker does not have is pulled, or built by ``debian-image.sh`` if no registry
answers.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BOOKWORM = "debian:bookworm-slim"
TRIXIE = "debian:trixie-slim"

_DOCKERFILE = Path(__file__).with_name("Dockerfile")
_IMAGE = "train-testbed"
_DEBIAN_IMAGE = Path(__file__).with_name("debian-image.sh")


class TestbedError(Exception):
    """The test bed cannot do what was requested; the message gives the reason."""

    __test__ = False  # not a test class, despite its name


def run(
    *command: str, stdin: str = "", check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program, including those of root, and return its output; ``timeout`` is in seconds.

    Raises:
        TestbedError: the program does not exist, took too long, or (with ``check``) failed.
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


@contextmanager
def one_build() -> Iterator[None]:
    """Allow only one process of this machine at a time to build an image."""
    with Path(tempfile.gettempdir(), "testbed-images.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_image(base: str = BOOKWORM, systemd: bool = False) -> str:
    """Build the hosts' image, unless one with the same inputs exists, and return its tag."""
    recipe = _DOCKERFILE.read_text(encoding="utf-8")
    target = "systemd" if systemd else "plain"
    uid = f"TRAIN_UID={os.getuid() or 1000}"
    with one_build():
        inputs = "\n".join([ensure_image(base), target, uid, recipe])
        tag = f"{_IMAGE}:{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
        if docker("image", "inspect", tag, check=False).returncode:
            docker(
                *("build", "--build-arg", f"BASE={base}", "--build-arg", uid, "--target", target),
                *("--tag", tag, "-"),
                stdin=recipe,
                timeout=900,
            )
    return tag


def ensure_image(name: str) -> str:
    """Get a base image unless Docker has it, and return its id."""
    identify = ("image", "inspect", "--format", "{{.Id}}", name)
    if docker(*identify, check=False).returncode:
        pulled = docker("pull", "--quiet", name, check=False, timeout=900)
        release = re.fullmatch(r"debian:([a-z]+)(-slim)?", name)
        try:
            if pulled.returncode and release:
                run(str(_DEBIAN_IMAGE), name, release.group(1), timeout=1800)
            docker(*identify)
        except TestbedError as error:
            raise TestbedError(
                f"Docker has no image {name} and cannot pull it:\n{pulled.stderr.strip()}\n"
                f"It was not made with debootstrap either, which needs root and the packages "
                f"debootstrap and debian-archive-keyring: {error}\nRemedies: a registry that Docker"
                f" reaches and `docker pull {name}`, or `docker load` of a saved image"
            ) from None
    return docker(*identify).stdout.strip()
