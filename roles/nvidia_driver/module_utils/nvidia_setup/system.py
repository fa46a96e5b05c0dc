"""The host's files, which are only read, and its programs, which get few variables and no input."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple, Optional, Tuple

#: Longest time that a program may take. nvidia-smi initialises every GPU, seconds each.
PROGRAM_LIMIT_S = 120


def search_path() -> str:
    """Return where programs are; a login user's own path lacks the folders of root's."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


class Answer(NamedTuple):
    """What a program answered; a program that is not there has the status 127."""

    status: int
    output: str


def start(
    command: Tuple[str, ...], errors: int, path: str, timeout: Optional[float] = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        errors: where its standard error goes, as ``subprocess`` says it.
        path: where programs are.
        timeout: the longest time that it may take, in seconds.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        timeout=timeout,
        env={"PATH": path, "LC_ALL": "C.UTF-8"},
        check=False,
    )


def run(*command: str) -> Answer:
    """Run a program and return both its outputs as one."""
    try:
        done = start(command, subprocess.STDOUT, search_path(), PROGRAM_LIMIT_S)
    except FileNotFoundError:
        return Answer(127, "%s is not installed" % command[0])
    except subprocess.TimeoutExpired:
        return Answer(124, "%s gave no answer within %d s" % (command[0], PROGRAM_LIMIT_S))
    return Answer(done.returncode, done.stdout.decode(errors="replace").strip())


def has(program: str) -> bool:
    """Whether a program is there."""
    return shutil.which(program, path=search_path()) is not None


class Host:
    """The host's files, read only.

    Args:
        root: the folder that stands for ``/``.
        pci_root: the kernel's listing of PCI devices.
    """

    def __init__(self, root: str, pci_root: str):
        self.root = root
        self.pci_root = pci_root

    def path(self, *parts: str) -> str:
        """Return where a file of the host is."""
        return os.path.join(self.root, *(part.lstrip("/") for part in parts))

    def read(self, *parts: str) -> Optional[str]:
        """Return a file's text, None where it is not there or may not be read."""
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return None
