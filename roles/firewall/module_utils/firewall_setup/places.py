"""The files on a host: where they lie, how they are read and written."""

from __future__ import annotations

import contextlib
import os

FOLDER = "/etc/train-firewall"
#: The rules that hold; the rules that wait to be confirmed; how nft lists the former once loaded.
RULES = FOLDER + "/rules.nft"
PENDING = FOLDER + "/pending.nft"
LISTED = FOLDER + "/listed.sha256"
UNIT = "train-firewall.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
ENABLED = "/etc/systemd/system/sysinit.target.wants/" + UNIT
DROP_IN_FILE = "/etc/systemd/system/nftables.service.d/train-firewall.conf"


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file in one step."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
