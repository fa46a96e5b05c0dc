"""The cluster's lines in files that the user has, too: ``authorized_keys`` and ``config``."""

from __future__ import annotations

from typing import List

#: Stands before each Include of this module, so that it knows those of other clusters.
MARKER = "# Kept by the role ssh_keys:"


def is_ours(line: str, name: str) -> bool:
    """Tell whether a line of authorized_keys is the cluster's: its comment says so."""
    words = line.split()
    return len(words) > 2 and words[0] != "#" and words[-1].startswith(name + ":")


def merge_authorized(text: str, lines: str, name: str) -> str:
    """Return authorized_keys with the cluster's lines in the place of its older ones."""
    kept = [line for line in text.splitlines(True) if not is_ours(line, name)]
    if lines and kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    return "".join(kept) + lines


def without_include(text: str, name: str) -> str:
    """Return ~/.ssh/config without the cluster's line."""
    include = "Include %s/config" % name
    kept: List[str] = []
    for line in text.splitlines(True):
        if line.strip() == include:
            if kept and kept[-1].strip() == MARKER:
                kept.pop()
        else:
            kept.append(line)
    return "".join(kept)


def with_include(text: str, name: str) -> str:
    """Return ~/.ssh/config with the cluster's line at its top."""
    return "%s\nInclude %s/config\n%s" % (MARKER, name, without_include(text, name))


def is_included(text: str, name: str) -> bool:
    """Tell whether the cluster's line stands before everything that could outdo it.

    Of an option that is given twice, ssh takes the first.
    """
    before = ""
    for line in text.splitlines():
        word = line.strip()
        if word == "Include %s/config" % name:
            return True
        if word and not word.startswith("#") and before != MARKER:
            return False
        before = word
    return False
