"""Keys: the user's own, how one is read and made, and the host's public ones."""

from __future__ import annotations

import base64
import binascii
import contextlib
import glob
import os
import struct
import subprocess
import tempfile
from typing import List, Tuple

from .files import ProblemError, read_text


def public_key(path: str) -> str:
    """Return the public half of a private key file; empty where there is no key that works.

    The format is OpenSSH's own (its file PROTOCOL.key): the public half stands before the private
    one, in the clear. A key with a passphrase works for nobody who is not asked for it.
    """
    text = read_text(path)
    try:
        blob = base64.b64decode("".join(text.strip().split("\n")[1:-1]).encode(), validate=True)
        if not blob.startswith(b"openssh-key-v1\0"):
            return ""
        cipher, rest = take_string(blob[15:])
        _, rest = take_string(rest)  # how the passphrase becomes a key
        _, rest = take_string(rest)
        public, private = take_string(rest[4:])  # after the number of keys
        kind, _ = take_string(public)
        take_string(private)
    except (ValueError, binascii.Error, struct.error):
        return ""
    if cipher != b"none" or kind != b"ssh-ed25519":
        return ""
    return "ssh-ed25519 " + base64.b64encode(public).decode()


def take_string(data: bytes) -> Tuple[bytes, bytes]:
    """Return the first string of SSH's encoding, and the rest.

    Raises:
        ValueError: the string is cut off.
        struct.error: so is its length.
    """
    (length,) = struct.unpack(">I", data[:4])
    if len(data) < 4 + length:
        raise ValueError("cut off")
    return data[4 : 4 + length], data[4 + length :]


def make_key(path: str, comment: str) -> None:
    """Make a key at ``path``, unless another process was first.

    Raises:
        ProblemError: ssh-keygen is missing or failed.
        OSError: the folder cannot be written.
    """
    folder = os.path.dirname(path)
    if os.path.lexists(path) and not public_key(path):
        os.unlink(path)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as place:
        new = os.path.join(place, "key")
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", new]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError:
            raise ProblemError(
                "there is no ssh-keygen on this host: install the SSH client "
                "(openssh-client on Debian and Ubuntu, openssh-clients on Rocky and RHEL)"
            ) from None
        if done.returncode or not public_key(new):
            reason = done.stderr.decode(errors="replace").strip()
            raise ProblemError("ssh-keygen made no key in %s: %s" % (folder, reason))
        with open(new, "rb") as stream:
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):  # another inventory host of this machine
            os.link(new, path)


def read_host_keys(pattern: str) -> List[str]:
    """Return the host's public keys without their comments.

    Raises:
        ProblemError: there are none.
        OSError: one cannot be read.
    """
    keys = []
    for path in sorted(glob.glob(pattern)):
        words = read_text(path).split()
        # DSA is no longer served by sshd.
        if len(words) >= 2 and words[0] != "ssh-dss":
            keys.append("%s %s" % (words[0], words[1]))
    if not keys:
        raise ProblemError(
            "no public host key is in %s: is sshd set up (ssh-keygen -A)? Keys elsewhere are named "
            "by ssh_keys_host_keys" % pattern
        )
    return keys
