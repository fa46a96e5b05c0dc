"""Fetches published files, if asked to. Standard library only."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .base import DataError

#: Seconds without a byte after which a server is given up.
PATIENCE = 60
BLOCK = 1 << 20


@dataclass(frozen=True)
class Published:
    """A file as it is published.

    Attributes:
        file: its name.
        address: the folder where it is to be had, with a slash at the end.
        sha256: its hash in hex.
        content: that of what a .gz file holds.
    """

    file: str
    address: str
    sha256: str
    content: str = ""


def _read_published() -> dict[str, list[Published]]:
    """Return the files that --download fetches, by data set.

    The role training_data reads the same file. MNIST's are a copy that Google keeps for TensorFlow:
    the authors' own server no longer gives them.
    """
    known = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return {
        name: [Published(file, one["address"], **hashes) for file, hashes in one["files"].items()]
        for name, one in known.items()
    }


PUBLISHED = _read_published()


def fetch(published: Published, folder: Path) -> None:
    """Fetch a file into ``folder``, which is made if it is missing.

    The file appears there whole and verified, or not at all; several processes may do so at once.

    Raises:
        DataError: the server does not answer, gives something else, or the folder is no good.
    """
    address = published.address + published.file
    target = folder / published.file
    # In the same folder, so that it can be renamed.
    temporary = folder / f".{published.file}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = _copy(address, temporary)
            if found != published.sha256:
                raise DataError(
                    f"{address} gave something else than the published file: its SHA-256 is "
                    f"{found}, not {published.sha256}; nothing was kept"
                )
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise DataError(f"{address} cannot be fetched: {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DataError(f"{address} cannot be fetched: {error.reason}") from error
    except http.client.HTTPException as error:
        raise DataError(f"{address} cannot be fetched: {error!r}") from error
    except OSError as error:
        raise DataError(f"{address} cannot be fetched to {target}: {error}") from error


def _copy(address: str, target: Path) -> str:
    """Write what ``address`` gives to ``target``; return its SHA-256 in hex."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer, target.open("wb") as stream:
        while block := answer.read(BLOCK):
            digest.update(block)
            stream.write(block)
    return digest.hexdigest()
