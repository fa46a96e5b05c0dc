"""Masks secrets of a script in the data that leaves its host: log, last lines and reasons.

Secrets are values of ``train_job_environment``, including each line of a value with several lines.
A value is a secret if the name of its variable indicates one, such as ``API_TOKEN``, if it looks
generated, or if it is a URL with a password. Other values, such as ``DATASET: cifar10``, are not
masked in logs: a setting would hide ordinary words there.
"""

from __future__ import annotations

import json
import re
from typing import Iterable, List, Mapping, Set

#: Replaces a secret in messages; in logs, the secret is replaced by as many asterisks as bytes.
MASK = "***"
#: Minimum length of a secret, and of the beginning of a secret at the end of a truncated line.
SHORTEST, SHORTEST_CUT = 4, 4

_ANNOUNCED = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH(?!ORS?(?:_|$))|PRIVATE|COOKIE|SIGNATURE|"
    r"WEBHOOK|DSN|(?:^|_)PIN(?:_|$)",
    re.IGNORECASE,
)
#: Values that ordinary settings have, such as ``MAX_TOKENS: "2048"``. Passwords may be like them.
_ORDINARY = re.compile(r"true|false|none|null|auto|default", re.IGNORECASE)
_SHORT_NUMBER = re.compile(r"[0-9]{1,5}|[0-9]{1,3}\.[0-9]{1,6}")
_PASSWORD = re.compile(r"PASS(?!ES)|PWD|SECRET|(?:^|_)PIN(?:_|$)", re.IGNORECASE)
_GENERATED = re.compile(r"(?=[A-Za-z+/_]*[0-9])(?=[0-9+/_]*[A-Za-z])[A-Za-z0-9+/_]{16}")
_WITH_PASSWORD = re.compile(r"//[^/\s]*@")
_PATH = re.compile(r"(?:~|\.{1,2})?/\S*")


def _is_secret(name: str, value: str) -> bool:
    if _ANNOUNCED.search(name):
        is_setting = _ORDINARY.fullmatch(value) or _SHORT_NUMBER.fullmatch(value)
        is_password = _PASSWORD.search(name)
        return len(value) >= SHORTEST and bool(is_password or not is_setting)
    if _WITH_PASSWORD.search(value):
        return True
    return _GENERATED.search(value) is not None and not _PATH.fullmatch(value)


def _forms(secret: str) -> Set[str]:
    """Return the forms in which a secret may be printed: as is, in a string literal, in a URL."""
    from urllib.parse import quote  # slow to import

    return {
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
    }


class Mask:
    """Masks the secrets in the environments of scripts.

    With ``every``, all values of at least SHORTEST characters are secrets. This is for messages
    that are sent to other people.
    """

    def __init__(self, environments: Iterable[Mapping[str, object]], every: bool = False) -> None:
        found: Set[str] = set()
        for environment in environments:
            for name, value in environment.items():
                for text in (str(value), *map(str.strip, str(value).splitlines())):
                    if _is_secret(name, text) or (every and len(text) >= SHORTEST):
                        found.update(_forms(text))
        #: Longest first, because one may contain another.
        self._secrets: List[str] = sorted(found, key=lambda text: (-len(text), text))
        self._bytes = [text.encode("utf-8", "surrogateescape") for text in self._secrets]
        #: Length of the longest secret in bytes; 0 if there is none.
        self.longest = max(map(len, self._bytes), default=0)

    def text(self, text: str) -> str:
        """Return a message without secrets, including those cut off at the end of a line."""
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
        """Return a piece of a log without secrets. Its length does not change.

        ``before`` and ``after`` are up to ``longest`` bytes around the piece, which may contain the
        other part of a secret.
        """
        around = before + data + after
        for secret in self._bytes:
            around = around.replace(secret, b"*" * len(secret))
        return around[len(before) : len(before) + len(data)]
