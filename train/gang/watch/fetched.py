"""The local copy of a rank's file, with a limited size. It is never written through a link."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from train.host import json_files

#: Suffix of the previous file. When a file is full, it becomes the previous file, and a new one is
#: started. At least the newer half of the limit is therefore kept.
OLDER = ".1"


class FetchedFile:
    """The local copy, of at most ``limit`` bytes, of a file that grows on its host.

    ``offset`` is the end of the fetched part, in bytes.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self._limit = path, limit
        # A hidden file records how many bytes are missing at the beginning of the copy.
        self._base_path = path.with_name(f".{path.name}.from")
        self._base = 0
        with contextlib.suppress(ValueError):
            self._base = int(_read(self._base_path, 0).decode())
        self.offset = self._base + self._size()

    def _size(self) -> int:
        return os.lstat(self.path).st_size if os.path.lexists(self.path) else 0

    def kept(self) -> int:
        """Return how many bytes are kept, including those in the previous file."""
        older = self.path.with_name(self.path.name + OLDER)
        return self._size() + (older.lstat().st_size if os.path.lexists(older) else 0)

    def tail(self, size: int) -> str:
        """Return the last ``size`` bytes of the copy, or an empty string if it cannot be read."""
        return _read(self.path, max(0, self._size() - size)).decode(errors="replace")

    def lines(self) -> int:
        """Return the number of lines in the copy, without those in the previous file."""
        return _read(self.path, 0).count(b"\n")

    def clear(self, offset: int) -> None:
        """Remove the copy and its previous file. The next data begins at ``offset``."""
        for path in (self.path, self._base_path, self.path.with_name(self.path.name + OLDER)):
            path.unlink(missing_ok=True)
        self.offset, self._base = offset, 0

    def append(self, data: bytes, end: int) -> None:
        """Append data that ends at the offset ``end`` of the host's file.

        Raise OSError, and append nothing, if it cannot be written.
        """
        before = self._size()
        if before + len(data) > self._limit // 2 and before:
            self.path.replace(self.path.with_name(self.path.name + OLDER))
            before = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            base = end - before - len(data)
            if base != self._base:
                json_files.write_json(str(self._base_path), base, durable=False)
                self._base = base
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        finally:
            os.close(descriptor)
        self.offset = end


def _read(path: Path, offset: int) -> bytes:
    """Return a file's content from ``offset`` on; empty if it is a link or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            stream.seek(offset)
            return stream.read()
    except OSError:
        return b""
