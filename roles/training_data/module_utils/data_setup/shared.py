"""What host and control node must do alike: the control node imports this module, too."""

from __future__ import annotations

import hashlib
import os
from typing import Mapping

#: Unit of what is sent and of the hashes by which a broken transfer is taken up, in bytes;
#: what a broken run loses at most.
CHUNK = 16 * 2**20
#: Files are sent together up to this size, in bytes; a larger one comes alone.
BATCH = 256 * 2**20


def tree_hash(hashes: Mapping[str, str]) -> str:
    """Return the hash of a folder: of the lines that ``sha256sum`` prints, sorted by path.

    Args:
        hashes: SHA-256 of the folder's files, by path.
    """
    digest = hashlib.sha256()
    for path in sorted(hashes, key=os.fsencode):
        digest.update(b"%s  %s\n" % (hashes[path].encode(), os.fsencode(path)))
    return digest.hexdigest()
