"""Reading and writing the user's files: byte for byte, and in one step."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile


class ProblemError(Exception):
    """What the module cannot do, with its reason and remedy."""


def sha256(text: str) -> str:
    """Return the digest of a text, the same on the control node."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def read_text(path: str) -> str:
    """Return a file's text, byte for byte; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write_text(path: str, text: str) -> None:
    """Write a file in one step; of one that is there, the mode stays, less what sshd refuses.

    Raises:
        ProblemError: it belongs to somebody else.
        OSError: it cannot be written; then it is as it was.
    """
    path = os.path.realpath(path)  # a link stays a link
    try:
        found = os.stat(path)
    except FileNotFoundError:
        mode = 0o600
    else:
        mode = stat.S_IMODE(found.st_mode) & ~0o022
        if not stat.S_ISREG(found.st_mode):
            raise ProblemError("%s is no file: move it away" % path)
        if found.st_uid != os.geteuid():
            owner = "user %d" % found.st_uid
            raise ProblemError("%s belongs to %s: give it to its user" % (path, owner))
    descriptor, new = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(new, mode)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise
