"""Keeps secrets of a script out of what leaves its host: its log, last lines and reasons.

Secrets are values of ``train_job_environment``, and the lines of values with several lines. A value
is a secret unless it is harmless: short, a number, a single word, a path or a setting of a known
library. If the variable's name announces a secret, such as ``API_TOKEN``, every value of SHORTEST
characters or more is one.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Iterable, List, Mapping, Set

#: What stands for a secret in messages; in logs it is as many asterisks as the secret has bytes.
MASK = "***"
#: Characters of the shortest secret, of the shortest one whose name does not announce it, and of
#: the shortest beginning of a secret that a line may have been cut off at.
SHORTEST, SHORTEST_UNANNOUNCED, SHORTEST_CUT = 4, 8, 4

_ANNOUNCED = re.compile(
    r"TOKEN|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH|PRIVATE|COOKIE|SIGNATURE|WEBHOOK|DSN|(?:^|_)PIN(?:_|$)",
    re.IGNORECASE,
)
_SETTINGS = re.compile(
    r"(?:CUDA|GLIBC|GRPC|JAX|KERAS|KMP|LC|LD|MALLOC|MKL|NCCL|OMP|OPENBLAS|PYTHON|TF|XLA)_?\w*|"
    r"(?:no|NO)_\w+|HOME|LANG|PATH|TMPDIR|TZ|USER",
    re.ASCII,
)
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{1,15}")
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w./ -]*", re.ASCII)


def _is_secret(name: str, value: str) -> bool:
    if _ANNOUNCED.search(name):
        return len(value) >= SHORTEST
    if len(value) < SHORTEST_UNANNOUNCED or _SETTINGS.fullmatch(name):
        return False
    return not any(harmless.fullmatch(value) for harmless in (_NUMBER, _WORD, _PATH))


def _forms(secret: str) -> Set[str]:
    """Return a secret as it may be printed: as it is, in a string literal, in a URL."""
    return {
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        urllib.parse.quote(secret, safe=""),
    }


class Mask:
    """Masks the secrets of scripts with these environments."""

    def __init__(self, environments: Iterable[Mapping[str, object]]) -> None:
        found: Set[str] = set()
        for environment in environments:
            for name, value in environment.items():
                for text in (str(value), *map(str.strip, str(value).splitlines())):
                    if _is_secret(name, text):
                        found.update(_forms(text))
        #: The longest first: one may hold another.
        self._secrets: List[str] = sorted(found, key=lambda text: (-len(text), text))
        self._bytes = [text.encode("utf-8", "surrogateescape") for text in self._secrets]
        #: Bytes of the longest secret; 0 without any.
        self.longest = max(map(len, self._bytes), default=0)

    def text(self, text: str) -> str:
        """Return a message without secrets, or the beginning of one that a line was cut off at."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return "\n".join(map(self._without_cut_secret, text.split("\n")))

    def _without_cut_secret(self, line: str) -> str:
        for secret in self._secrets:
            for end in range(len(secret) - 1, SHORTEST_CUT - 1, -1):
                if line.endswith(secret[:end]):
                    return line[:-end] + MASK
        return line

    def log(self, data: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
        """Return a piece of a log of the same length, without secrets; ``before`` and ``after`` are
        up to ``longest`` bytes around it, which may hold the other part of one.
        """
        around = before + data + after
        for secret in self._bytes:
            around = around.replace(secret, b"*" * len(secret))
        return around[len(before) : len(before) + len(data)]
