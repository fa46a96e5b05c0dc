"""Several users of one machine, one of them hostile: the folder of the leases belongs to nobody."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.lease_ranks import PORT, Starter, holder, jobs, queue, spec_of
from train.host import leases

#: tests/test_leases_ssh.py has a second user wherever there are containers.
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
ANNA, MALLORY = 12_001, 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not there yet, in one such as /tmp: pytest's own is closed to others."""
    parent = Path(tempfile.mkdtemp(prefix="test-leases-", dir="/tmp"))
    parent.chmod(0o1777)
    yield parent / "leases"
    shutil.rmtree(parent)


class Child:
    """A process of another user that does something and stays until it is ended."""

    def __init__(self, uid: int, action: Callable[[], object]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                action()
                os.write(writer, b"k")
                time.sleep(120)
            finally:
                os._exit(1)
        os.close(writer)
        self.done = os.read(reader, 1) == b"k"
        os.close(reader)

    def __enter__(self) -> Child:
        assert self.done
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def acts(uid: int, action: Callable[[], object]) -> None:
    """Do something as another user, to its end."""
    with Child(uid, action):
        pass


def lock(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Lock a file or a folder, as long as this process lives."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    return descriptor


def forged(folder: Path, text: bytes, number: int = 0) -> Path:
    """Write a file that has the name of a lease."""
    path = folder / f"lease-{number:032x}.json"
    path.write_bytes(text)
    return path


def sound(**fields: Any) -> dict[str, Any]:
    """Return the fields of a lease."""
    lease = {
        **{"state": "started", "created_at": 0.5, "job": "forged", "task": "worker-0"},
        **{"attempt": 1, "since": 1.0, "net": os.readlink("/proc/self/ns/net")},
        "resources": ["port/12345", "port/12346", "gpu/GPU-a"],
    }
    return {**lease, **fields}


# ------------------------------------------------------------------------------ one user


def test_all_users_may_write_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        leases.take(str(folder), PORT, holder("a"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path
    folder.chmod(0o700)
    leases.take(str(folder), {"port/1": "port 1"}, holder("a"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


UNSOUND: list[bytes] = [
    b"",
    b"{",
    b"[" * 16_000,
    b"\xff\xfe{}",
    b"null",
    b"[1, 2]",
    b'{"created_at": 1' + b"0" * 9_000 + b"}",
    json.dumps(sound()).encode()[:-9],
    json.dumps(sound(job="j" * 20_000)).encode(),
]
FIELDS: list[dict[str, Any]] = [
    {"state": "for ever"},
    {"state": []},
    {"created_at": None},
    {"created_at": float("nan")},
    {"created_at": 10**400},
    {"since": float("inf")},
    {"since": -1e30},
    {"job": "x\x1b]0;owned\x07"},
    {"job": "../../x"},
    {"task": "worker-0\n"},
    {"task": 3},
    {"attempt": float("inf")},
    {"attempt": "first"},
    {"net": "net:[x]"},
    {"resources": None},
    {"resources": "port/12345"},
    {"resources": ["port/12345", 3]},
    {"resources": ["port/12345", "gpu/../x"]},
]
UNSOUND += [json.dumps(sound(**fields)).encode() for fields in FIELDS]


def test_locks_on_what_are_no_leases_hold_nothing(folder: Path) -> None:
    folder.mkdir()
    descriptors = [lock(forged(folder, text, number)) for number, text in enumerate(UNSOUND)]
    assert leases.entries(str(folder)) == []
    assert leases.wait(str(folder), PORT, holder("b", 2.0), 0) == []
    leases.take(str(folder), PORT, holder("b", 2.0))
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_lock_on_what_is_a_lease_holds_it(folder: Path) -> None:
    """So what the test before this one has seen is due to the texts."""
    folder.mkdir()
    path = forged(folder, json.dumps(sound()).encode())
    descriptor = lock(path)
    assert jobs(folder) == ["forged"] * 3
    os.close(descriptor)
    assert jobs(folder) == []
    assert path.exists(), "a look changes nothing"
    leases.take(str(folder), PORT, holder("b", 2.0))
    assert not path.exists()


def test_files_of_other_kinds_and_names_are_left_alone(folder: Path) -> None:
    folder.mkdir()
    names = ["precious.json", "leases.json", "lease-1.json", f"lease-{1:032x}.json.tmp"]
    for name in names:
        (folder / name).write_text("mine")
    (folder / f"lease-{2:032x}.json").symlink_to(folder / "precious.json")
    os.mkfifo(folder / f"lease-{3:032x}.json")
    (folder / f"lease-{4:032x}.json").mkdir()
    leases.take(str(folder), PORT, holder("a"))
    leases.give_back(str(folder), holder("a"))
    assert len(os.listdir(folder)) == len(names) + 3
    assert jobs(folder) == []


def test_a_folder_that_cannot_be_used_is_no_obstacle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PAUSES", (0.0, 0.1))
    spec = spec_of(folder, holder("a"), PORT)
    held = leases.Held(spec)
    request = {"folder": str(folder), "resources": PORT, "holder": list(holder("a"))}
    target = folder.parent / "target"
    target.mkdir()
    makers: list[Callable[[], object]] = [
        lambda: folder.write_text("in the way"),
        lambda: folder.symlink_to(target),
        lambda: os.mkfifo(folder),
    ]
    for make in makers:
        make()
        with pytest.raises(
            leases.LeaseError, match=rf"^{folder} cannot be used: .* \(of user root,"
        ):
            leases.take(str(folder), PORT, holder("a"))
        for do in ("wait", "take", "give_back"):
            assert leases.answer(dict(request, do=do, seconds=0)) == {"blockers": []}
        held.confirm()
        leases.release_rank(spec)
        assert jobs(folder) == []
        folder.unlink()
    assert list(target.iterdir()) == [], "no link is followed"
    held._due = 0.0
    held.renew()
    assert jobs(folder) == ["a"], "it is taken as soon as it can be"
    held.release()
    with pytest.raises(leases.LeaseError, match="choose another train_job_lease_dir"):
        leases.take(str(folder.parent / "no" / "parent"), PORT, holder("a"))


def test_a_full_disk_is_reported_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PAUSES", (0.0,))
    leases.take(str(folder), PORT, holder("a"))
    before = os.listdir(folder)

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(leases.LeaseError, match=os.strerror(errno.EFBIG)):
            leases.take(str(folder), {"port/2": "port 2"}, holder("b", 2.0))
        held = leases.Held(spec_of(folder, holder("b", 2.0), {"port/2": "port 2"}))
        held.confirm()
        held._due = 0.0
        held.renew()
        held.release()

    acts(os.getuid(), full)
    assert os.listdir(folder) == before
    assert jobs(folder) == ["a"]


# ------------------------------------------------------------------------------ several users


@needs_root
def test_two_users_share_the_folder(folder: Path, supervisor: Starter) -> None:
    other = supervisor()
    other.ask("setuid", ANNA)
    assert other.starts(folder, holder("theirs")) is None
    assert folder.stat().st_uid == ANNA
    with pytest.raises(leases.HeldError, match=rf"job theirs \(user uid {ANNA}, since"):
        leases.take(str(folder), PORT, holder("mine", 2.0))
    leases.take(str(folder), {"port/2": "port 2"}, holder("mine", 2.0))
    refused = other.ask("take", str(folder), {"port/2": "port 2"}, holder("more", 3.0))
    assert "port 2 is taken for worker-0 of job mine (user root" in refused
    # A name that two users have chosen in the same moment is not one job.
    refused = other.ask("take", str(folder), {"port/2": "port 2"}, holder("mine", 2.0, attempt=2))
    assert "port 2 is taken for worker-0 of job mine (user root" in refused
    other.ask("give_back", str(folder), holder("mine", 2.0, attempt=2))
    other.ask("release")
    assert jobs(folder) == ["mine"]


@needs_root
@pytest.mark.parametrize("who", [0, ANNA], ids=["root", "a user"])
def test_what_another_user_writes_neither_ends_nor_refuses_a_rank(
    folder: Path, supervisor: Starter, who: int
) -> None:
    """200 writes, of garbage and forged leases; the folder is removed and made again."""
    secret = folder.parent / "secret"
    secret.write_text(json.dumps(sound()))

    def spoil() -> None:
        names = os.listdir(folder)
        texts = [(folder / name).read_bytes() for name in names]
        for name in names:
            for act in (os.unlink, (folder / name).write_text):
                with pytest.raises(PermissionError):
                    act(str(folder / name))
        states = [json.dumps(sound(state=name)).encode() for name in ("queued", "taken", "started")]
        forgeries = [*UNSOUND, *states, texts[0].replace(b"mine", b"your")]
        for number in range(200):
            path = folder / f"lease-{number:032x}.json"
            kind = number % 10
            if kind == 0:
                path.symlink_to((folder / names[0], secret)[number % 20 // 10])
            elif kind == 1:
                os.mkfifo(path, 0o666)
            elif kind == 2:
                path.mkdir()
            elif kind == 3:
                path.touch()
                os.truncate(path, 2**32)
            elif kind == 4:
                (folder / f"leases-{number}.json").write_text("[" * 100_000)
            else:
                path.write_bytes(forgeries[number % len(forgeries)])
                path.chmod((0o600, 0o644, 0o666)[number % 3])

    rank, late = supervisor(), supervisor()
    for one in (rank, late):
        one.ask("setuid", who)
    late.ask("__setattr__", "_PAUSES", (0.0,))
    assert rank.starts(folder, holder("mine"), {**PORT, "gpu/GPU-b": "GPU 1"}) is None
    acts(MALLORY, spoil)
    rank.renews()
    assert jobs(folder) == ["mine", "mine"]
    free = {"port/12346": "port 12346", "gpu/GPU-a": "GPU 0"}
    assert late.starts(folder, holder("late", 2.0), free) is None
    assert sorted(jobs(folder)) == ["late", "late", "mine", "mine"]
    assert "job mine" in late.ask("take", str(folder), PORT, holder("more", 3.0))
    late.ask("release")

    modes = (0o1777, 0o755, 0o700)  # of a folder that is mallory's
    for number in range(6):
        shutil.rmtree(folder)
        rank.renews()
        if number % 2:
            shutil.rmtree(folder)
            acts(MALLORY, folder.mkdir)
            folder.chmod(modes[number // 2])
            rank.renews()
        problem = late.starts(folder, holder("late", 2.0), free)
        if problem:  # of which stage only warns
            assert problem == cannot_be_used(folder)
            late.ask("held", spec_of(folder, holder("late", 2.0), free))
            assert late.ask("confirm") is None
        late.ask("release")
    rank.ask("release")
    assert json.loads(secret.read_text()) == sound()


def cannot_be_used(folder: Path) -> str:
    """Return what a user is told of a folder that another one has closed."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    told = f"{folder} cannot be used: Permission denied (of user nobody, mode {mode:o})"
    return f"{told}: have it removed, or choose another train_job_lease_dir"


@needs_root
def test_who_really_holds_a_lock_delays_a_job_under_their_own_name(folder: Path) -> None:
    leases.give_back(str(folder), holder("nothing"))
    folder.mkdir()
    folder.chmod(0o1777)
    text = json.dumps(sound(user="anna", own=True, job="night-1")).encode()
    with Child(MALLORY, lambda: lock(forged(folder, text))):
        told = r"port 12345 is in use by worker-0 of job night-1 \(user nobody, since"
        with pytest.raises(leases.HeldError, match=told):
            leases.take(str(folder), PORT, holder("night-1", 0.5, attempt=2))
        killed = leases.entries(str(folder))
        assert [(entry["own"], entry["user"]) for entry in killed] == [(False, "nobody")]
    leases.take(str(folder), PORT, holder("b", 2.0))
    assert jobs(folder) == ["b"], "it is over with the process"


@needs_root
def test_who_locks_the_whole_folder_delays_little(folder: Path, supervisor: Starter) -> None:
    rank = supervisor()
    rank.ask("setuid", ANNA)
    rank.ask("__setattr__", "LOCK_LIMIT_S", 0.3)
    leases.take(str(folder), {"port/1": "port 1"}, holder("first"))
    with Child(MALLORY, lambda: lock(folder)):
        began = time.monotonic()
        assert rank.starts(folder, holder("a")) is None
        assert "job a" in rank.ask("take", str(folder), PORT, holder("b", 2.0))
        assert time.monotonic() - began < 4 * leases.LOCK_LIMIT_S
        rank.ask("__setattr__", "LOCK_LIMIT_S", leases.LOCK_LIMIT_S)
        began = time.monotonic()
        rank.renews()
        rank.ask("release")
        assert time.monotonic() - began < leases.LOCK_LIMIT_S, "a rank that runs waits for nobody"
    assert jobs(folder) == ["first"]


@needs_root
def test_files_cannot_be_kept_from_being_locked(folder: Path) -> None:
    """Who locks each new file as soon as it is there cannot lock one before its owner."""
    folder.mkdir()
    folder.chmod(0o1777)

    def snatch() -> None:
        kept = []
        while True:
            for name in os.listdir(folder):
                with suppress(OSError):
                    kept.append(lock(folder / name, fcntl.LOCK_SH))

    with Child(MALLORY, threading.Thread(target=snatch, daemon=True).start):
        for number in range(30):
            who = holder(f"job{number}", float(number))
            leases.take(str(folder), PORT, who)
            assert jobs(folder) == [who.job]
            assert leases.wait(str(folder), PORT, who, 0) == []
            assert queue(folder) == [who.job]
            leases.give_back(str(folder), who)
