#!/usr/bin/python
"""Ansible module: brings a repository's signing key, if it is the one that is expected.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3, without gpg.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_key
short_description: Bring a repository's signing key, if it is the one that is expected
description:
  - Downloads an OpenPGP key, compares its fingerprint with the expected one, and writes it only
    where they are the same. Works without gpg, which small installations of Debian lack.
  - A package manager trusts every key of a key file, so the file must hold one key and no more.
options:
  url:
    description: Where the key is.
    type: str
    required: true
  path:
    description: Where to write it on the host.
    type: path
    required: true
  fingerprint:
    description: The key's whole fingerprint, 40 hexadecimal digits.
    type: str
    required: true
attributes:
  check_mode:
    description: Compares the file with the fingerprint and downloads nothing.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Bring the key of NVIDIA's repository
  nvidia_key:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    path: /etc/apt/keyrings/nvidia-cuda.asc
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
"""

RETURN = r"""
path:
  description: The key on the host.
  type: str
  returned: success
"""

import base64
import hashlib
import os
import re
import tempfile
from typing import Iterator, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url

#: A key is some kilobytes; more is something else.
SIZE_LIMIT = 1024 * 1024
PUBLIC_KEY = 6


class KeyFileError(Exception):
    """The file is not the expected key; the message says what it is."""


def unarmor(text: str) -> bytes:
    """Return the packets of an ASCII-armored public key (RFC 9580, section 6).

    Raises:
        KeyFileError: it is none.
    """
    blocks = re.findall(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?:[^\n]*: [^\n]*\n)*(.*?)"
        r"-----END PGP PUBLIC KEY BLOCK-----",
        text,
        re.DOTALL,
    )
    if len(blocks) != 1:
        raise KeyFileError("it holds %d armored public keys, not one" % len(blocks))
    # The line that begins with "=" is a checksum that protects from nothing.
    lines = [line.strip() for line in blocks[0].splitlines() if not line.startswith("=")]
    try:
        return base64.b64decode("".join(lines), validate=True)
    except ValueError as error:
        raise KeyFileError("its base64 is broken: %s" % error) from None


def packets(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield type and body of each packet (RFC 9580, section 4.2).

    Raises:
        KeyFileError: a packet is cut off or of a form that keys do not have.
    """
    place = 0
    while place < len(data):
        head = data[place]
        if not head & 0x80:
            raise KeyFileError("it holds no OpenPGP packets")
        if head & 0x40:
            kind, first = head & 0x3F, data[place + 1] if place + 1 < len(data) else 255
            if first < 192:
                size, start = first, place + 2
            elif first < 224:
                size = (
                    ((first - 192) << 8) + int.from_bytes(data[place + 2 : place + 3], "big") + 192
                )
                start = place + 3
            elif first == 255:
                size, start = int.from_bytes(data[place + 2 : place + 6], "big"), place + 6
            else:
                raise KeyFileError("it has a packet of unknown length")
        else:
            kind, width = (head & 0x3C) >> 2, head & 3
            if width == 3:
                raise KeyFileError("it has a packet of unknown length")
            start = place + 1 + (1 << width)
            size = int.from_bytes(data[place + 1 : start], "big")
        if start + size > len(data):
            raise KeyFileError("it is cut off")
        yield kind, data[start : start + size]
        place = start + size


def fingerprints(text: str) -> List[str]:
    """Return the fingerprints of the primary keys of an armored file.

    Raises:
        KeyFileError: the file is no such file, or a key is not of version 4.
    """
    found = []
    for kind, body in packets(unarmor(text)):
        if kind == PUBLIC_KEY:
            if body[:1] != b"\x04":
                raise KeyFileError("it holds a key that is not of version 4")
            hashed = b"\x99" + len(body).to_bytes(2, "big") + body
            # SHA-1 is what defines the fingerprint of such a key.
            found.append(hashlib.sha1(hashed).hexdigest().upper())
    return found


def check(text: str, fingerprint: str) -> None:
    """Refuse everything but the one expected key.

    Raises:
        KeyFileError: it is something else.
    """
    found = fingerprints(text)
    if found != [fingerprint]:
        raise KeyFileError("it holds the key %s" % (" and ".join(found) or "of nobody"))


def is_there(path: str, fingerprint: str) -> bool:
    """Whether the file is the expected key, readable for all."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            check(stream.read(SIZE_LIMIT), fingerprint)
        return os.stat(path).st_mode & 0o777 == 0o644
    except (OSError, KeyFileError):
        return False


def write(path: str, text: str) -> None:
    """Write the key in one step."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=folder, prefix=".nvidia-")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(text)
        os.chmod(new, 0o644)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "fingerprint": {"type": "str", "required": True, "no_log": False},
        },
        supports_check_mode=True,
    )
    url, path = module.params["url"], module.params["path"]
    fingerprint = module.params["fingerprint"].replace(" ", "").upper()
    if not re.fullmatch(r"[0-9A-F]{40}", fingerprint):
        module.fail_json(msg="%r is no fingerprint of 40 hexadecimal digits" % fingerprint)
    if is_there(path, fingerprint):
        module.exit_json(changed=False, path=path)
    if module.check_mode:
        module.exit_json(changed=True, path=path)
    response, info = fetch_url(module, url, timeout=30)
    if info["status"] not in (200, -1) or response is None:
        module.fail_json(msg="%s cannot be fetched: %s" % (url, info["msg"]))
    try:
        text = response.read(SIZE_LIMIT).decode("ascii", errors="replace")
        check(text, fingerprint)
        write(path, text)
    except KeyFileError as error:
        module.fail_json(
            msg="%s is not the key %s: %s. Somebody stands in for the repository, or it has a new"
            " key: compare with what its owner publishes before you trust it."
            % (url, fingerprint, error)
        )
    except OSError as error:
        module.fail_json(msg="%s cannot be written: %s" % (path, error))
    module.exit_json(changed=True, path=path)


if __name__ == "__main__":
    main()
