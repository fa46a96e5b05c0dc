"""What is sent: files in batches, each batch as one stream, and words about how far it is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from roles.training_data.control.sources import File
from roles.training_data.module_utils.data_setup import shared

#: Files are sent together up to this number; `shared.BATCH` has the limit in bytes.
BATCH_FILES = 5000
#: Seconds between two words about a long transfer.
WORD_EVERY_S = 10.0


def batches(files: list[File], numbers: list[int]) -> Iterator[list[int]]:
    """Yield the numbers of the files that are sent together, in order."""
    batch: list[int] = []
    size = 0
    for number in numbers:
        if batch and (size + files[number].size > shared.BATCH or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += files[number].size
    if batch:
        yield batch


class Blob:
    """Files one after another, as one stream."""

    def __init__(self, files: list[File]) -> None:
        self._files = files
        self.size = sum(file.size for file in files)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from ``offset`` on, fewer than ``length`` only at the end.

        Raises:
            AnsibleActionFail: a file has become shorter.
        """
        parts: list[bytes] = []
        start = 0
        for file in self._files:
            end = start + file.size
            if length and end > offset:
                count = min(length, end - offset)
                with Path(file.source).open("rb") as stream:
                    stream.seek(offset - start)
                    data = stream.read(count)
                if len(data) < count:
                    raise AnsibleActionFail(f"{file.source} was changed during the run. Run again.")
                parts.append(data)
                offset += count
                length -= count
            start = end
            if not length:
                break
        return b"".join(parts)

    def agrees_until(self, hashes: list[list[Any]]) -> int:
        """Return how many bytes, of what came in pieces with these sizes and hashes, are right."""
        offset = 0
        for length, sha256 in hashes:
            data = self.read(offset, length)
            if len(data) < length or hashlib.sha256(data).hexdigest() != sha256:
                break
            offset += length
        return offset


class Word:
    """Says now and then how far a long transfer is."""

    def __init__(self, what: str, size: int) -> None:
        self._what = what
        self._size = size
        self._came = 0
        self._last = time.monotonic()

    def add(self, count: int) -> None:
        """Note that so many bytes more are there."""
        self._came += count
        if time.monotonic() - self._last > WORD_EVERY_S:
            self._last = time.monotonic()
            Display().display(f"{self._what}: {self._came / 1e6:.0f} of {self._size / 1e6:.0f} MB")
