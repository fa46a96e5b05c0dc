"""Handles text from scripts and hosts, and prints notes."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Optional, TextIO

#: Terminal escape sequences, and characters that control a terminal or the direction of text.
_ESCAPES = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?|[ -/]*[0-~])?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str, limit: int) -> str:
    """Return up to ``limit`` characters of ``text``, without controls except newlines and tabs."""
    text = text[: 4 * limit]
    if not text.isprintable():
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text[:limit]


def is_number(text: str) -> bool:
    """Return whether a text consists of ASCII digits; isdigit() also accepts ``²`` and ``٣``."""
    return text.isascii() and text.isdecimal()


def note(text: str, stream: Optional[TextIO] = None) -> None:
    """Print a line at once, by default on standard error; ignore errors such as a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)
