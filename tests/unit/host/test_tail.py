"""Reading files while a script writes, truncates or replaces them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from train.host import tail
from train.host.tail import Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_what_is_added_is_read_once(path: Path) -> None:
    file = Tail(str(path))
    assert (file.read(), file.size()) == (b"", 0)
    add(path, b"one")
    assert (file.read(), file.read(), file.size()) == (b"one", b"", 3)
    add(path, b" two")
    assert file.read() == b" two"
    assert file.read_last(5) == b"e two"
    assert file.read_last(99, start=4) == b"two"
    assert tail.read_last(str(path), 3) == b"two"


def test_a_file_that_was_cut_off_begins_anew(path: Path) -> None:
    file = Tail(str(path))
    add(path, b"a long line")
    file.read()
    os.truncate(path, 0)
    assert file.read() == b""
    add(path, b"new")
    assert file.read() == b"new"
    assert file.read_last(99, start=11) == b"new"


def test_a_renamed_file_is_read_on_until_another_has_something(path: Path) -> None:
    file = Tail(str(path))
    with path.open("ab", buffering=0) as stream:
        stream.write(b"one")
        assert file.read() == b"one"
        path.rename(path.with_suffix(".1"))
        stream.write(b"two")
        assert file.read() == b"two"
        path.touch()
        stream.write(b"three")
        assert file.read() == b"three"
    add(path, b"four")
    assert file.read() == b"four"
    path.unlink()
    assert (file.read(), file.read_last(9)) == (b"", b"four")


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda p: p.symlink_to(p)],
    ids=["directory", "fifo", "device", "loop"],
)
def test_what_is_no_file_is_empty_and_not_waited_for(path: Path, make: Any) -> None:
    make(path)
    file = Tail(str(path))
    assert (file.read(), file.read_lines(), file.read_last(9), file.size()) == (b"", b"", b"", 0)
    assert tail.size(str(path)) is None
    assert tail.size(str(path) + "-missing") == 0


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("call", ["pread", "fstat", "stat", "open"])
def test_after_an_error(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    file = Tail(str(path))
    add(path, b"one\n")
    assert file.read_lines() == b"one"
    if call == "open":
        file.close()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        assert (file.read_lines(), file.read_lines()) == (b"", b"")
    add(path, b"two\n")
    assert file.read_lines() == b"two"


def test_lines_are_whole_and_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK", 10)
    monkeypatch.setattr(tail, "_CHUNKS", 16)
    file = Tail(str(path))
    add(path, b"one\ntw")
    assert file.read_lines() == b"one"
    add(path, b"o\n" + b"x" * 25)
    assert file.read_lines() == b"two"
    add(path, b"y" * 500)
    assert file.read_lines() == b""
    assert file._rest == b""
    add(path, b"z\n" + b"0123456789\n" + b"0123456789a\nlast\n")
    assert b"".join(file.read_lines() for _ in range(9)) == b"0123456789\nlast"


def test_of_a_file_that_grows_faster_than_it_is_read_the_newest_lines_come(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "CHUNK", 10)
    file = Tail(str(path))
    add(path, b"one\ntw")
    assert file.read_lines() == b"one"
    add(path, b"".join(b"line %d\n" % number for number in range(1000)))
    *cut, last = file.read_lines().splitlines()
    assert last == b"line 999"
    assert len(cut) <= 3
    add(path, b"next\n")
    assert file.read_lines() == b"next"
    file.skip_to(path.stat().st_size + 4)
    add(path, b"passed over\n")
    assert file.read() == b"ed over\n"
