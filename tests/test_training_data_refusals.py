"""The role ``training_data``: what is refused, before or while it comes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from tests.training_data_role import SIZE, Make, part

pytest_plugins = ("tests.training_data_role",)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"src": "source"}, "name must be"),
        ({"name": "../x", "src": "source"}, "name must be"),
        ({"name": "x"}, "either src"),
        ({"name": "x", "src": "source", "mounted": "/mnt"}, "either src"),
        ({"name": "x", "src": "https://example.org/a.tgz"}, "nothing is fetched"),
        ({"name": "x", "src": "source", "dest": "../y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "dest": "/y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "sha256": "abc"}, "64 hexadecimal"),
        ({"name": "x", "src": "source", "dataset": "imagenet"}, "is one of fashion-mnist"),
        ({"name": "x", "src": "source", "unpack": True}, "unpack is for one file"),
        ({"name": "x", "src": "source", "sort": 1}, "no others"),
        ({"name": "x", "mounted": "mnt"}, "absolute path"),
        ({"name": "x", "src": "nowhere"}, "is not there"),
        ({"name": "x", "src": "source/large"}, "needs sha256"),
        ({"name": "x", "src": "source/large", "sha256": "0" * 64}, "expected 000000"),
    ],
)
def test_bad_input_is_refused(entry: dict[str, Any], words: str, make: Make, source: Path) -> None:
    action = make(entry)
    with pytest.raises(AnsibleActionFail, match=words):
        action.act()
    assert not action.root.exists()


def test_entries_at_odds(make: Make, source: Path) -> None:
    one = {"name": "x", "src": "source"}
    for other, words in (
        (one, "two entries"),
        ({"name": "y", "src": "source", "dest": "x"}, "would lie in"),
        ({"name": "y", "src": "source", "dest": "x/y"}, "would lie in"),
    ):
        with pytest.raises(AnsibleActionFail, match=words):
            make(one, other).act()


def test_a_bad_entry_stops_before_the_good_one_comes(make: Make, source: Path) -> None:
    action = make({"name": "good", "src": "source"}, {"name": "bad", "src": "nowhere"})
    with pytest.raises(AnsibleActionFail, match="nowhere"):
        action.act()
    assert not action.root.exists()


def test_odd_files_in_a_folder(make: Make, source: Path) -> None:
    (source / "sub" / "up").symlink_to("..")
    with pytest.raises(AnsibleActionFail, match="that it is in"):
        make({"name": "data", "src": "source"}).act()
    (source / "sub" / "up").unlink()
    (source / "dead").symlink_to("nowhere")
    with pytest.raises(AnsibleActionFail, match="dead is no file"):
        make({"name": "data", "src": "source"}).act()


def test_data_of_others_are_not_replaced(make: Make, source: Path) -> None:
    action = make({"name": "data", "src": "source"})
    (action.root / "data").mkdir(parents=True)
    (action.root / "data" / "precious").write_text("mine")
    result = action.act()
    assert "precious" in result["msg"]
    assert "Move it away" in result["msg"]
    assert action.sent == 0
    # Without it, files that are there already are not sent.
    (action.root / "data" / "precious").unlink()
    (action.root / "data" / "large").write_bytes((source / "large").read_bytes())
    again = make({"name": "data", "src": "source"})
    again.act()
    assert again.sent == SIZE - 9000


def test_too_little_space(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**6
    disk = SimpleNamespace(f_bavail=free, f_frsize=1, f_files=1, f_favail=10**6)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    monkeypatch.setattr(part("planning"), "RESERVE", 0)
    entry = {"name": "data", "src": "source"}
    disk.f_bavail = SIZE - 1
    for check_mode in (True, False):
        action = make(entry, check_mode=check_mode)
        assert "Too little space for data" in action.act()["msg"]
        assert not action.root.exists()
    disk.f_bavail, disk.f_favail = free, 3
    assert "Too few inodes" in make(entry).act()["msg"]


def test_a_full_disk_is_told(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"rc": 1, "stdout": "", "stderr": "cat: write error: No space left on device\n"}
    action = make({"name": "data", "src": "source"})
    monkeypatch.setattr(action, "_low_level_execute_command", lambda *_, **__: full)
    with pytest.raises(AnsibleActionFail) as error:
        action.act()
    for words in ("/data/part", "No space left", "What has come stays", "run again"):
        assert words in str(error.value)
