"""The role ``training_data``: what is sent, cut, taken up and put in place."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from tests.training_data_role import SIZE, Action, CutError, Make, content, part, sha256

pytest_plugins = ("tests.training_data_role",)

taking = part("taking")


def test_a_folder_comes_once(make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    checked = make(entry, check_mode=True)
    result = checked.act()
    assert result["changed"]
    assert result["brought"] == [{"name": "data", "bytes": SIZE, "sent": 0}]
    assert not checked.root.exists()
    first = make(entry)
    result = first.act()
    assert result["brought"] == [{"name": "data", "bytes": SIZE, "sent": SIZE}]
    assert result["paths"] == {"data": str(first.root / "data")}
    assert content(first.root / "data") == content(source)
    assert (first.root / "data" / "large").stat().st_mode & 0o777 == 0o644
    second = make(entry)
    result = second.act()
    assert (result["changed"], result["brought"]) == (False, [])
    assert second.calls == ["look"]
    assert not make(entry, check_mode=True).act()["changed"]
    assert os.listdir(first.root / ".training_data") == ["data.json"]


@pytest.mark.parametrize("cut_after", [1, 999, 1000, 1001, 3500, 8123, 9001, 15000, SIZE - 1])
def test_a_cut_transfer_is_taken_up(cut_after: int, make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    broken.cut_after = cut_after
    with pytest.raises(CutError):
        broken.act()
    assert not (broken.root / "data").exists()
    assert broken.sent == cut_after
    again = make(entry)
    again.act()
    assert broken.sent + again.sent == SIZE
    assert content(again.root / "data") == content(source)


def test_a_source_that_changed_meanwhile(make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    broken.cut_after = 12000
    with pytest.raises(CutError):
        broken.act()
    (source / ".empty").write_bytes(b"not empty any more")
    (source / "large").write_bytes(os.urandom(9100))
    again = make(entry)
    again.act()
    assert content(again.root / "data") == content(source)


def test_a_break_while_files_are_made_loses_nothing(
    make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "data", "src": "source"}
    copy, count = taking.copy_tail, iter(range(100))

    def dying(*arguments: Any) -> Any:
        if next(count) == 2:
            raise CutError
        return copy(*arguments)

    broken = make(entry)
    monkeypatch.setattr(taking, "copy_tail", dying)
    with pytest.raises(CutError):
        broken.act()
    monkeypatch.setattr(taking, "copy_tail", copy)
    again = make(entry)
    again.act()
    assert broken.sent + again.sent == SIZE
    assert content(again.root / "data") == content(source)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("unpack", [False, True])
def test_a_break_while_data_are_put_in_place(
    step: int,
    unpack: bool,
    make: Make,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The three moments: before, between and after the two renames."""

    def entry() -> dict[str, Any]:
        if not unpack:
            return {"name": "data", "src": "source"}
        pack(source, tmp_path / "data.tar")
        return {"name": "data", "src": "data.tar", "sha256": sha256(tmp_path / "data.tar")}

    make(entry()).act()
    (source / "sub" / "1 ä.bin").unlink()
    (source / "large").write_bytes(os.urandom(9000))
    old = tmp_path / "host" / "data" / "own"
    old.write_text("of the user")
    rename, replace, count = os.rename, os.replace, iter(range(100))

    def dying(move: Any) -> Any:
        def moving(source: str, target: str) -> None:
            mine = str(target).endswith(("/data", "/old", "/data.json"))
            if mine and next(count) == step:
                raise CutError
            move(source, target)

        return moving

    monkeypatch.setattr(os, "rename", dying(rename))
    monkeypatch.setattr(os, "replace", dying(replace))
    with pytest.raises(CutError):
        make(entry()).act()
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", replace)
    again = make(entry())
    again.act()
    assert again.sent == 0
    assert content(tmp_path / "host" / "data") == {**content(source), "own": b"of the user"}
    assert make(entry()).act()["changed"] is False


def pack(folder: Path, path: Path) -> None:
    with tarfile.open(path, "w") as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                packed.add(file.resolve(), str(file.relative_to(folder)))


def test_only_what_differs_is_sent(make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    first = make(entry)
    first.act()
    data = first.root / "data"
    (data / "cache").mkdir()
    (data / "cache" / "own.tfrecord").write_text("of the user")
    kept = (data / "large").stat().st_ino
    (source / "sub" / "3 ä.bin").write_bytes(os.urandom(50))
    (source / "sub" / "4 ä.bin").unlink()
    (source / "new").write_bytes(b"new")
    assert make(entry, check_mode=True).act()["brought"][0]["bytes"] == 53
    second = make(entry)
    second.act()
    assert second.sent == 53
    assert content(data) == {**content(source), "cache/own.tfrecord": b"of the user"}
    assert (data / "large").stat().st_ino == kept
    assert make(entry).act()["changed"] is False


def test_damage_is_mended(make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    first = make(entry)
    first.act()
    large = first.root / "data" / "large"
    large.unlink()
    again = make(entry)
    again.act()
    assert again.sent == 9000
    before = large.stat()
    large.write_bytes(b"x" * 9000)
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert make(entry).act()["changed"] is False
    verified = make(entry, verify=True)
    verified.act()
    assert verified.sent == 9000
    assert content(first.root / "data") == content(source)


def test_what_comes_broken_is_refused(make: Make, source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    part = broken.root / ".training_data" / "data" / "part"

    def flip() -> None:
        if part.exists() and part.stat().st_size >= 1000:
            data = bytearray(part.read_bytes())
            data[10] ^= 1
            part.write_bytes(data)

    broken.before_sending = flip
    result = broken.act()
    assert result["failed"]
    for words in ("expected", "SHA-256", "run again"):
        assert words in result["msg"]
    assert not (broken.root / "data").exists()
    again = make(entry)
    again.act()
    assert content(again.root / "data") == content(source)


def test_another_run_at_the_same_time(make: Make, source: Path) -> None:
    """One of two that send the same waits, and then has nothing or less to send."""
    entry = {"name": "data", "src": "source"}
    slow = make(entry)
    started: list[bool] = []

    def other() -> None:
        if slow.sent == 3000 and not started:
            started.append(True)
            Action(slow._folder, [entry]).act()

    slow.before_sending = other
    slow.act()
    assert started
    assert slow.sent < SIZE
    assert content(slow.root / "data") == content(source)


def test_a_worker_without_its_parent_stops(
    make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = make({"name": "data", "src": "source"})
    parents = iter([100, 100, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(AnsibleActionFail, match="has ended"):
        action.act()
    assert action.sent == 1000
