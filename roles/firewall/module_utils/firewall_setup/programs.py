"""Programs and files of the host, and the error of all that goes wrong."""

from __future__ import annotations

import os
import subprocess

SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


class FirewallError(Exception):
    """The rules cannot be made or loaded; the message says why, and what to do."""


def run(*arguments: str, check: bool = True, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command.

    Raises:
        FirewallError: it fails, and ``check`` is true.
    """
    done = subprocess.run(
        arguments,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        check=False,
    )
    if check and done.returncode:
        raise FirewallError(
            "`%s` ended with %d: %s" % (" ".join(arguments), done.returncode, done.stderr.strip())
        )
    return done


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file in one step."""
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)
