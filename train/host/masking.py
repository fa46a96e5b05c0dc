"""Keeps secrets of a script out of what leaves its host: its log, last lines and reasons.

Secrets are values of ``train_job_environment``, and the lines of values with several lines: those
of a variable whose name announces a secret, such as ``API_TOKEN``, and those that look generated or
are URLs with a password. All others, such as ``DATASET: cifar10``, stay readable in logs.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Iterable, List, Mapping, Set

#: What stands for a secret in messages; in logs it is as many asterisks as the secret has bytes.
MASK = "***"
#: Characters of the shortest secret, and of the shortest beginning of one that a line may have been
#: cut off at.
SHORTEST, SHORTEST_CUT = 4, 4

_ANNOUNCED = re.compile(
    r"TOKEN|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH|PRIVATE|COOKIE|SIGNATURE|WEBHOOK|DSN|"
    r"(?:^|_)PIN(?:_|$)",
    re.IGNORECASE,
)
_GENERATED = re.compile(r"(?=[A-Za-z+/_]*[0-9])(?=[0-9+/_]*[A-Za-z])[A-Za-z0-9+/_]{16}")
_WITH_PASSWORD = re.compile(r"//[^/\s]*@")
_PATH = re.compile(r"(?:~|\.{1,2})?/\S*")


def _is_secret(name: str, value: str) -> bool:
    if _ANNOUNCED.search(name):
        return len(value) >= SHORTEST
    if _WITH_PASSWORD.search(value):
        return True
    return _GENERATED.search(value) is not None and not _PATH.fullmatch(value)


def _forms(secret: str) -> Set[str]:
    """Return a secret as it may be printed: as it is, in a string literal, in a URL."""
    return {
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        urllib.parse.quote(secret, safe=""),
    }


class Mask:
    """Masks the secrets of scripts with these environments; ``every`` takes all values of SHORTEST
    characters or more for secrets, for messages that are sent to other people.
    """

    def __init__(self, environments: Iterable[Mapping[str, object]], every: bool = False) -> None:
        found: Set[str] = set()
        for environment in environments:
            for name, value in environment.items():
                for text in (str(value), *map(str.strip, str(value).splitlines())):
                    if _is_secret(name, text) or (every and len(text) >= SHORTEST):
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
