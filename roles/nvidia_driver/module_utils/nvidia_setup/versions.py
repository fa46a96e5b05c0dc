"""Versions of drivers, packages and kernels."""

from __future__ import annotations

import re
from typing import Tuple

#: What stands before the flavour in a kernel's name: 6.1.0-50-amd64, 6.12.94+deb13-cloud-amd64,
#: 6.8.0-1044-azure.
KERNEL_VERSION = r"^\d[\d.]*(\+deb\d+)?(-\d+)?-"


def numbers(version: str) -> Tuple[int, ...]:
    """Return the numbers in a version, to compare it."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def version_key(text: str) -> Tuple[int, ...]:
    """Return a version such as ``525.60.13`` as numbers, to compare it.

    Raises:
        ValueError: it is no version.
    """
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise ValueError("%r is no version such as 525.60.13" % text)
    return numbers(text)


def upstream(version: str) -> str:
    """Return the driver's version of a package's, ``535.1`` of ``3:535.1-1~deb12u1``."""
    found = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return found.group(1) if found else ""


def kernel_flavour(release: str) -> str:
    """Return the flavour in a kernel's name, ``amd64`` of ``6.1.0-50-amd64``."""
    return re.sub(KERNEL_VERSION, "", release)
