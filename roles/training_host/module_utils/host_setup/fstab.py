"""Files in the form of fstab(5): how they are written and read."""

from __future__ import annotations

from typing import Dict, List

FSTAB = "/etc/fstab"
MOUNTS = "/proc/mounts"
#: Mount option that marks lines of fstab as this project's.
MARK = "x-train.host"


def escape(text: str) -> str:
    """Return a field as fstab wants it (fstab(5))."""
    for character, code in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        text = text.replace(character, code)
    return text


def unescape(text: str) -> str:
    """Return a field of fstab or /proc/mounts with its octal escapes decoded (fstab(5))."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def read_mounts(path: str) -> Dict[str, List[str]]:
    """Return source, type and options by mount point, of a file in the form of fstab."""
    mounts: Dict[str, List[str]] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                fields = line.split()
                if len(fields) >= 4 and not fields[0].startswith("#"):
                    mounts[unescape(fields[1])] = [
                        unescape(field) for field in (fields[0], *fields[2:4])
                    ]
    except FileNotFoundError:
        pass
    return mounts
