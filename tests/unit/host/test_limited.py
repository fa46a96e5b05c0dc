"""The limit on the size of a file that a rank writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from train.host import limited
from train.host.limited import LimitedFile

LIMIT = 1 << 20
LINE = b"%07d " + b"x" * 91 + b"\n"


def lines(first: int, count: int) -> bytes:
    return b"".join(LINE % number for number in range(first, first + count))


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def keep(file: LimitedFile) -> None:
    hole = file.wanted()
    if hole and hole != file.hole:
        file.free(hole)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


@pytest.fixture
def file(path: Path) -> LimitedFile:
    return LimitedFile(str(path), LIMIT)


def test_the_beginning_and_the_newest_part_stay_where_they_were(
    path: Path, file: LimitedFile
) -> None:
    data = lines(0, 200_000)
    with path.open("ab", buffering=0) as stream:  # held open, as by a script
        for begin in range(0, len(data), 500_000):
            stream.write(data[begin : begin + 500_000])
            keep(file)
            assert on_disk(path) <= LIMIT + 8192
    assert file.hole is not None
    begin, end = file.hole
    found = path.read_bytes()
    assert len(found) == len(data)
    assert found[:begin] == data[:begin]
    assert found[end:] == data[end:]
    assert not found[begin:end].strip(b"\0")
    assert begin >= LIMIT // 16
    assert len(data) - end >= LIMIT // 2


def test_a_small_file_is_left_alone(path: Path, file: LimitedFile) -> None:
    assert file.wanted() is None
    path.write_bytes(lines(0, 10_000))
    assert file.wanted() is None
    path.write_bytes(lines(0, 30_000))
    assert LimitedFile(str(path), 0).wanted() is None


def test_a_link_is_not_followed(path: Path, file: LimitedFile, tmp_path: Path) -> None:
    other = tmp_path / "data of the user"
    other.write_bytes(lines(0, 30_000))
    path.symlink_to(other)
    assert file.wanted() is None
    with pytest.raises(OSError, match="symbolic links"):
        file.free((0, LIMIT))
    assert other.read_bytes() == lines(0, 30_000)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_the_script_begins_again_has_no_hole(
    path: Path, file: LimitedFile, replaced: bool
) -> None:
    path.write_bytes(lines(0, 30_000))
    keep(file)
    assert file.hole is not None
    if replaced:
        path.rename(path.with_suffix(".old"))
    path.write_bytes(lines(0, 5))
    assert file.wanted() is None
    assert file.hole is None


def test_where_space_cannot_be_freed_the_file_begins_again_with_its_last_lines(
    path: Path, file: LimitedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def punch(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(limited, "punch", punch)
    with path.open("ab", buffering=0) as stream:
        stream.write(lines(0, 30_000))
        keep(file)
        stream.write(b"new\n")
    assert file.hole is None
    found = path.read_bytes()
    assert lines(0, 30_000).endswith(found[: -len(b"new\n")])
    assert found.endswith(LINE % 29_999 + b"new\n")
    assert len(found) > 60_000


def test_another_error_is_reported(
    path: Path, file: LimitedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def punch(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(limited, "punch", punch)
    path.write_bytes(lines(0, 30_000))
    hole = file.wanted()
    assert hole is not None
    with pytest.raises(OSError, match="Input/output"):
        file.free(hole)
    assert path.read_bytes() == lines(0, 30_000)
