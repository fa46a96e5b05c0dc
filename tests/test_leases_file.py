"""The file of the leases: damage, other users, links, locks, full disks."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lease_ranks import PORT, Supervisor, holder, saved, spec_of
from train.host import lease_file, leases
from train.host.lease_file import LeaseError, LeaseFile

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def other() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.process.kill()
    made.process.join()


def jobs(folder: Path) -> list[str]:
    return [lease["job"] for lease in leases.holders(str(folder))]


def test_all_users_may_write_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        leases.take(str(folder), PORT, holder("a"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666, path
    (folder / "leases.json").chmod(0o600)
    leases.take(str(folder), {"port/1": "port 1"}, holder("a"))
    assert stat.S_IMODE((folder / "leases.json").stat().st_mode) == 0o666


DAMAGE: list[tuple[str, Any]] = [
    ("empty", lambda text: b""),
    ("half", lambda text: text[: len(text) // 2]),
    ("zeros", lambda text: bytes(len(text))),
    ("no object", lambda text: b"[1, 2]\n"),
    ("binary", lambda text: b"\xff\xfe" + text),
    ("one letter", lambda text: text.replace(b'"job": "a"', b'"job": "b"')),
    ("new over old", lambda text: text[:100] + text[50:]),
    ("wrong lists", lambda text: lease_file._encode({"version": 1, "leases": 3, "queue": []})),
]


@pytest.mark.parametrize("damage", [d for _, d in DAMAGE], ids=[name for name, _ in DAMAGE])
def test_a_damaged_file_is_repaired_from_its_copy(folder: Path, damage: Any) -> None:
    leases.take(str(folder), PORT, holder("a"))
    path = folder / "leases.json"
    path.write_bytes(damage(path.read_bytes()))
    assert jobs(folder) == ["a"]
    assert json.loads(path.read_text())["leases"][0]["job"] == "a", "it is repaired"
    (folder / "leases-copy.json").write_bytes(b"{")
    assert jobs(folder) == ["a"]


def test_with_both_damaged_those_that_run_claim_theirs(folder: Path, other: Supervisor) -> None:
    assert other.starts(folder, holder("a")) is None
    for path in folder.iterdir():
        path.write_bytes(b"{")
    assert jobs(folder) == []
    assert other.renews() == ""
    assert jobs(folder) == ["a"]


def test_who_is_killed_while_writing_leaves_the_old_state_or_the_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of bytes, of the copy or of the file."""
    leases.take(str(folder), PORT, holder("a"))
    old = {path: path.read_bytes() for path in folder.iterdir()}
    real = os.pwrite
    left = 0

    class Killed(BaseException):
        pass

    def write(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal left
        written = real(descriptor, data[:left], offset) if left else 0
        left -= written
        if written < len(data):
            raise Killed
        return written

    found = []
    for limit in range(0, 10_000, 61):
        for path, text in old.items():
            path.write_bytes(text)
        left = limit
        monkeypatch.setattr(os, "pwrite", write)
        try:
            leases.take(str(folder), {"port/2": "port 2"}, holder("b", 2.0))
            break
        except Killed:
            monkeypatch.undo()
            found.append(jobs(folder))
    else:
        raise AssertionError("the file is longer")
    olds = found.count(["a"])
    assert found == [["a"]] * olds + [["a", "b"]] * (len(found) - olds)
    assert min(olds, len(found) - olds) > 5, "some were killed in each of the two files"


def test_a_full_disk_is_told_and_leaves_the_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = leases.take(str(folder), PORT, holder("a"))
    held = leases.Held(spec_of(folder, holder("a"), PORT, tokens))

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(
        LeaseError, match=r"leases\.json cannot be used: No space left on device: c"
    ):
        leases.take(str(folder), {"port/2": "port 2"}, holder("b", 2.0))
    with pytest.raises(LeaseError, match="No space left"):
        held.confirm()
    assert held.renew() == "", "a rank that trains goes on"
    held.release()
    monkeypatch.undo()
    assert jobs(folder) == ["a"]


def test_a_rank_goes_on_while_the_file_cannot_be_used(folder: Path, other: Supervisor) -> None:
    assert other.starts(folder, holder("a")) is None
    with LeaseFile(str(folder)).locked():
        began = time.monotonic()
        assert other.renews() == ""
        assert time.monotonic() - began < 5
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    assert other.renews() == ""
    folder.unlink()
    assert other.renews() == ""
    assert jobs(folder) == ["a"]


def test_a_process_that_keeps_the_lock_is_named(folder: Path, other: Supervisor) -> None:
    leases.take(str(folder), PORT, holder("a"))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with LeaseFile(str(folder)).locked():
            os.write(writer, b"x")
            time.sleep(60)
        os._exit(0)
    try:
        os.read(reader, 1)
        os.kill(pid, signal.SIGSTOP)
        expected = f"leases.json has been locked for 0.3 s by pid {pid}: end that process"
        with pytest.raises(LeaseError, match=expected), LeaseFile(str(folder)).locked(0.3):
            pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert jobs(folder) == ["a"], "the kernel frees the lock of the dead"


def test_who_waited_for_a_file_that_was_removed_takes_the_new_one(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"))
    first = LeaseFile(str(folder))
    with first.locked():
        (folder / "leases.json").unlink()
        with LeaseFile(str(folder)).locked(1.0) as state:
            state["last_token"] += 5
    assert (folder / "leases.json").exists()


def test_what_is_no_plain_file_is_not_touched(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.write_text("mine")
    folder.mkdir()
    path = folder / "leases.json"
    makers: list[Callable[[], None]] = [
        lambda: path.symlink_to(mine),
        lambda: path.hardlink_to(mine),
        lambda: os.mkfifo(path),
        path.mkdir,
    ]
    for make in makers:
        make()
        with pytest.raises(LeaseError, match=str(path)):
            leases.take(str(folder), PORT, holder("a"))
        (path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)()
    assert mine.read_text() == "mine"
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(LeaseError, match="link is a link, or no folder: remove it or choose anot"):
        leases.take(str(link), PORT, holder("a"))
    with pytest.raises(LeaseError, match="choose another train_job_lease_dir"):
        leases.take(str(tmp_path / "no" / "parent"), PORT, holder("a"))


def test_what_another_user_wrote_there_is_not_believed(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"))
    sound = saved(folder)["leases"][0]
    bad: list[Any] = [
        None,
        {},
        dict(sound, resource=3),
        dict(sound, expires="soon"),
        dict(sound, expires=float("nan")),
        dict(sound, expires=sound["expires"] + 1e9),
        dict(sound, job="x\x1b]0;owned\x07"),
        dict(sound, user="u" * 1000),
        dict(sound, pid="1", start=1),
        dict(sound, pid=2**70, start=1),
        {k: v for k, v in dict(sound, resources=[]).items() if k not in ("resource", "token")},
        {k: v for k, v in dict(sound, resources=[3, None]).items() if k != "resource"},
    ]
    for entry in bad:
        with LeaseFile(str(folder)).locked() as state:
            state["leases"] = [entry]
            state["queue"] = [entry]
        assert jobs(folder) == [], entry
        assert leases.wait(str(folder), PORT, holder("b", 2.0), 0) == [], entry
        assert leases.take(str(folder), PORT, holder("b", 2.0)), entry
        leases.give_back(str(folder), holder("b", 2.0))


@needs_root
def test_two_users_share_the_file(tmp_path: Path, other: Supervisor) -> None:
    # As /tmp: pytest's own folder is closed to others.
    tmp_path = Path("/tmp", f"test-leases-{os.getpid()}")
    folder = tmp_path / "leases"
    tmp_path.mkdir(mode=0o755)
    tmp_path.chmod(0o1777)
    try:
        other.ask("setuid", 65534)
        assert other.starts(folder, holder("theirs")) is None
        assert folder.stat().st_uid == 65534
        name = lease_file.user_name(65534)
        with pytest.raises(leases.HeldError, match=rf"job theirs \(user {name}, since"):
            leases.take(str(folder), PORT, holder("mine", 2.0))
        assert leases.take(str(folder), {"port/2": "port 2"}, holder("mine", 2.0))
        refused = other.ask("take", str(folder), {"port/2": "port 2"}, holder("more", 3.0))
        assert "port 2 is taken for worker-0 of job mine (user root" in refused
        assert other.renews() == ""
        other.ask("release")
        assert jobs(folder) == ["mine"]

        # A folder or a file that its owner has closed.
        folder.chmod(0o700)
        os.chown(folder, 0, 0)
        refused = other.ask("take", str(folder), PORT, holder("theirs"))
        assert refused.startswith(f"{folder} of user root is not open to all users (mode 700): ")
        folder.chmod(0o1777)
        (folder / "leases.json").chmod(0o600)
        os.chown(folder / "leases.json", 0, 0)
        refused = other.ask("take", str(folder), PORT, holder("theirs"))
        assert f"{folder}/leases.json of user root is not open to all users (mode 600)" in refused
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        tmp_path.rmdir()


@needs_root
def test_the_supervisor_of_another_user_is_seen(tmp_path: Path, other: Supervisor) -> None:
    """It cannot be signalled, but its end is noticed."""
    shared = Path("/tmp", f"test-leases-{os.getpid()}")
    shared.mkdir()
    shared.chmod(0o1777)
    try:
        assert other.starts(shared, holder("roots")) is None
        second = Supervisor()
        second.ask("setuid", 65534)
        assert "job roots (user root" in second.starts(shared, holder("nobodys", 2.0))
        other.kill()
        assert second.starts(shared, holder("nobodys", 2.0)) is None
        second.kill()
    finally:
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()
