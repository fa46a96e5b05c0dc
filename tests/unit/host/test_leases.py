"""Leases of ports and GPUs: real processes that compete, are killed, wait and take over.

The folder belongs to nobody: several users share it, one of them hostile.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY
from tests.support.lease_ranks import PORT, Starter, holder, jobs, queue, spec_of
from train.host import calls, leases, preflight, records

GPU = {"gpu/GPU-a": "GPU 0"}
#: tests/integration/ssh/test_leases_ssh.py has a second user wherever there are containers.
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
ANNA, MALLORY = 12_001, 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not there yet, in one such as /tmp: pytest's own is closed to others."""
    parent = Path(tempfile.mkdtemp(prefix="test-leases-", dir="/tmp"))
    parent.chmod(0o1777)
    yield parent / "leases"
    shutil.rmtree(parent)


def wait_until_free(folder: Path) -> None:
    """Wait until no job holds anything."""
    wait_until(lambda: jobs(folder) == [], "the leases", timeout=20)


def test_what_a_rank_wants() -> None:
    machine = [
        {"index": 0, "uuid": "GPU-a", "instances": ["MIG-1", "MIG-2"]},
        {"index": 1, "uuid": "GPU-b", "instances": []},
    ]
    gpu_b = {"gpu/GPU-b": "GPU 1"}
    assert leases.wanted(None, None, machine) == {}
    assert leases.wanted(12345, ["1", "0"], machine) == {**PORT, **GPU, **gpu_b}
    assert leases.wanted(None, ["MIG-2"], machine) == {"gpu/GPU-a/MIG-2": "MIG-2 of GPU 0"}
    assert leases.wanted(None, ["GPU-b"], machine) == gpu_b


def test_a_whole_gpu_and_an_instance_of_it_exclude_each_other(folder: Path) -> None:
    one, other = {"gpu/GPU-a/MIG-1": "MIG-1"}, {"gpu/GPU-a/MIG-2": "MIG-2"}
    leases.take(str(folder), one, holder("a"))
    leases.take(str(folder), other, holder("b"))
    with pytest.raises(leases.HeldError, match=r"GPU 0 is taken for worker-0 of job a .*; GPU 0"):
        leases.take(str(folder), GPU, holder("c", 2.0))
    leases.take(str(folder), {"gpu/GPU-ab": "GPU 1"}, holder("c"))
    assert sorted(jobs(folder)) == ["a", "b", "c"]


def test_of_many_at_once_one_gets_everything(folder: Path, supervisor: Starter) -> None:
    wanted = [{**PORT, **GPU}, {**GPU, "gpu/GPU-b": "GPU 1"}]
    ranks = [supervisor() for _ in range(6)]

    def start(place: int) -> Any:
        who = holder(f"job{place}", 1.0 + place)
        return ranks[place].starts(folder, who, wanted[place % 2])

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(start, range(6)))
    (winner,) = [place for place, answer in enumerate(found) if answer is None]
    for answer in found[:winner] + found[winner + 1 :]:
        assert f"of job job{winner} (user " in answer
    held = {lease["resource"]: lease["job"] for lease in leases.holders(str(folder))}
    assert held == dict.fromkeys(wanted[winner % 2], f"job{winner}")


def test_a_refusal_names_the_holder_and_takes_nothing(folder: Path, supervisor: Starter) -> None:
    assert supervisor().starts(folder, holder("night-1", task="worker-1")) is None
    began = time.monotonic()
    user, year = leases.user_name(os.getuid()), time.strftime("%Y-")
    expected = rf"^port 12345 is in use by worker-1 of job night-1 \(user {user}, since {year}"
    with pytest.raises(leases.HeldError, match=expected):
        leases.take(str(folder), {**GPU, **PORT}, holder("day", 0.5))
    assert time.monotonic() - began < 5, "a job that runs is not waited for"
    assert [lease["resource"] for lease in leases.holders(str(folder))] == ["port/12345"]
    assert jobs(folder) == ["night-1"]
    assert len(os.listdir(folder)) == 1, "what was taken is now held"


def test_a_port_that_a_job_has_is_refused_waited_for_or_its_own(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"))
    held = leases.holders(str(folder))
    (problem,) = preflight.check_port(12345, "b", held, wait=0)
    assert problem.startswith("port 12345 is taken for worker-0 of job a (user ")
    assert problem.endswith(f"stop that job, choose another train_job_port, {preflight.WAIT}")
    assert preflight.check_port(12345, "b", held, wait=60) == []
    assert preflight.check_port(12345, "a", held, wait=0) == []


def test_neither_a_child_that_survives_nor_the_watchdog_keeps_a_lease(folder: Path) -> None:
    """As in the supervisor: the watchdog is its parent, the script is started after the leases."""
    code = """
import os, subprocess, sys, json, time
from train.host import leases
if os.fork():
    time.sleep(60)
held = leases.Held(json.loads(sys.argv[1]))
held.confirm()
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", code, json.dumps(spec_of(folder, holder("a"), PORT))]
    watchdog = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert watchdog.stdout is not None
    supervisor, child = map(int, watchdog.stdout.readline().split())
    try:
        assert jobs(folder) == ["a"]
        os.kill(supervisor, 9)
        wait_until_free(folder)
        os.kill(child, 0)
        assert watchdog.poll() is None
    finally:
        watchdog.kill()
        watchdog.wait()
        watchdog.stdout.close()
        os.kill(child, 9)


def test_the_next_attempt_takes_over(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    assert first.starts(folder, holder("a")) is None
    # Another task of the same host: the gang got smaller.
    assert second.starts(folder, holder("a", task="chief-0", attempt=2)) is None
    third = supervisor()
    refused = third.starts(folder, holder("a"))
    assert "is in use by chief-0 of job a" in refused, "no attempt takes over a later one"
    first.ask("release")
    second.renews()
    assert jobs(folder) == ["a"]
    # Another job of the same name is another job.
    assert "job a" in third.starts(folder, holder("a", 7.0, attempt=3))


def test_an_attempt_takes_over_what_an_earlier_one_has_not_started(folder: Path) -> None:
    leases.take(str(folder), {**PORT, "port/1": "port 1"}, holder("a", task="chief-0"))
    leases.take(str(folder), PORT, holder("a", attempt=2))
    leases.give_back(str(folder), holder("a"))
    found = [(lease["task"], lease["attempt"]) for lease in leases.holders(str(folder))]
    assert found == [("worker-0", 2)], "an earlier one gives back only its own"
    leases.give_back(str(folder), holder("a", attempt=2))
    assert jobs(folder) == []


def test_a_start_that_comes_too_late(folder: Path, supervisor: Starter) -> None:
    late = supervisor()
    for other in (None, supervisor()):
        leases.take(str(folder), PORT, holder("late"), seconds=0.05)
        wait_until_free(folder)
        if other is not None:
            assert other.starts(folder, holder("other", 2.0)) is None
        late.ask("held", spec_of(folder, holder("late"), PORT))
        refused = late.ask("confirm")
        late.ask("release")
        assert (refused is None) == (other is None)
    assert "port 12345 is in use by worker-0 of job other" in refused


def test_one_start_of_a_rank(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    leases.take(str(folder), PORT, holder("a"))
    for process in (first, second):
        process.ask("held", spec_of(folder, holder("a"), PORT))
    assert first.ask("confirm") is None
    assert "port 12345 is in use by worker-0 of job a (" in second.ask("confirm")
    second.ask("release")
    leases.release_rank(spec_of(folder, holder("a"), PORT))
    assert jobs(folder) == ["a"], "what another start holds is not given back"


@pytest.mark.parametrize("check", [True, False])
def test_a_stop_gives_back_what_a_rank_has_that_never_started(folder: Path, check: bool) -> None:
    leases.take(str(folder), PORT, holder("a"))
    rank_dir = folder.parent / "jobs/a/worker-0"
    rank_dir.mkdir(parents=True)
    spec = {**spec_of(folder, holder("a"), PORT), "host": "node-1", "created_at": 1.0}
    (rank_dir / records.RANK_FILE).write_text(json.dumps(spec))
    about = {"root": str(folder.parent), "job": "a", "host": "node-1", "check": check}
    report = calls.stop({**about, "grace": 0, "reason": "enough"})
    assert (report["changed"], report["stop_report"]["was"]) == (False, "absent")
    assert jobs(folder) == (["a"] if check else [])


def test_a_lost_file_is_written_again_by_those_that_run(folder: Path, supervisor: Starter) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a"), {**PORT, **GPU}) is None

    def remove() -> Path:
        (path,) = folder.iterdir()
        path.unlink()
        return path

    def replace() -> None:
        remove().write_text("")

    elsewhere = folder.parent / "elsewhere"
    for lose in (remove, replace, lambda: shutil.rmtree(folder), lambda: folder.rename(elsewhere)):
        lose()
        assert jobs(folder) == []
        first.renews()
        assert jobs(folder) == ["a", "a"]
    late = supervisor()
    late.ask("held", spec_of(folder, holder("b", 2.0), PORT))
    assert "is in use by worker-0 of job a" in late.ask("confirm")
    first.ask("release")
    assert jobs(folder) == []


def test_a_rank_that_runs_keeps_running_whoever_takes_its_lease(
    folder: Path, supervisor: Starter
) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a")) is None
    next(folder.iterdir()).unlink()
    leases.take(str(folder), PORT, holder("b", 2.0))
    first.renews()
    assert jobs(folder) == ["a", "b"]
    first.ask("release")
    assert jobs(folder) == ["b"], "what is another's is not given back"


def test_ports_are_those_of_a_network_and_gpus_those_of_the_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.take(str(folder), {**PORT, **GPU}, holder("a"))
    monkeypatch.setattr(leases, "_network", lambda: "net:[1]")
    leases.take(str(folder), PORT, holder("b", 2.0))
    with pytest.raises(leases.HeldError, match="GPU 0 is taken for"):
        leases.take(str(folder), GPU, holder("b", 2.0))
    found = [(lease["job"], lease["resource"]) for lease in leases.holders(str(folder))]
    assert found == [("a", "gpu/GPU-a"), ("b", "port/12345")]


def test_a_rank_without_port_and_gpus_needs_no_folder(folder: Path) -> None:
    leases.take(str(folder), {}, holder("a"))
    held = leases.Held(spec_of(folder, holder("a"), {}))
    held.confirm()
    held._due = 0.0
    held.renew()
    held.release()
    leases.release_rank(cast(records.RankSpec, {}))  # it is cut off
    assert jobs(folder) == []
    assert not folder.exists()


def test_the_queue_has_the_order_in_which_the_jobs_were_made(folder: Path) -> None:
    place = str(folder)
    early, late = holder("early", 1.0), holder("late", 2.0)
    assert leases.wait(place, PORT, late, 0) == []
    assert leases.wait(place, PORT, early, 0) == []
    (blocker,) = leases.wait(place, PORT, late, 0)
    assert (blocker["job"], blocker["state"]) == ("early", leases.QUEUED)
    text = leases.describe(blocker)
    assert text.startswith("port 12345 is next for worker-0 of job early (user ")
    assert "waiting since" in text
    with pytest.raises(leases.HeldError, match="is next for worker-0 of job early"):
        leases.take(place, PORT, late)
    with pytest.raises(leases.HeldError, match="is next for worker-0 of job early"):
        leases.take(place, PORT, holder("hasty", 3.0))
    assert leases.wait(place, {"port/9": "port 9"}, holder("elsewhere", 4.0), 0) == []
    # Of one moment, the id decides.
    assert leases.wait(place, PORT, holder("a", 1.0), 0) == []
    assert leases.wait(place, PORT, early, 0)[0]["job"] == "a"
    # The order is not that of arrival here.
    leases.take(place, PORT, holder("first", 0.5))
    assert jobs(folder) == ["first"]


def test_who_waits_is_let_in_when_the_holder_dies(folder: Path, supervisor: Starter) -> None:
    running = supervisor()
    assert running.starts(folder, holder("a")) is None
    killer = threading.Timer(0.7, running.kill)
    killer.start()
    began = time.monotonic()
    assert leases.wait(str(folder), PORT, holder("b", 2.0), 20) == []
    assert 0.5 < time.monotonic() - began < 10
    killer.join()


def test_a_dead_place_in_the_queue_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "QUEUED_S", 2.0)
    assert leases.wait(str(folder), PORT, holder("dead", 1.0), 0) == []
    assert leases.wait(str(folder), PORT, holder("next", 2.0), 0) != []
    assert leases.wait(str(folder), PORT, holder("next", 2.0), 20) == []


def test_a_place_is_kept_while_it_is_asked_for_and_given_back(folder: Path) -> None:
    leases.wait(str(folder), PORT, holder("a"), 0)
    since = leases.entries(str(folder))[0]["since"]
    time.sleep(0.05)
    leases.take(str(folder), PORT, holder("a"), stay=True)
    assert (jobs(folder), queue(folder)) == (["a"], ["a"])
    leases.wait(str(folder), PORT, holder("a"), 0)
    assert [entry["since"] for entry in leases.entries(str(folder))] == [since]
    assert jobs(folder) == [], "who waits holds nothing"
    leases.take(str(folder), PORT, holder("a"))
    assert (jobs(folder), queue(folder)) == (["a"], [])


def test_of_two_that_hold_a_part_the_later_one_gives_way(tmp_path: Path) -> None:
    one, other = str(tmp_path / "h1"), str(tmp_path / "h2")
    early, late = holder("early", 1.0), holder("late", 2.0)
    leases.take(one, PORT, early)
    leases.take(other, PORT, late)
    began = time.monotonic()
    with pytest.raises(leases.HeldError, match="job early"):
        leases.take(one, PORT, late)
    assert time.monotonic() - began < 5, "the later one does not wait"
    back = threading.Timer(0.7, leases.give_back, (other, late))
    back.start()
    leases.take(other, PORT, early)  # the earlier one waits until it is given back
    assert jobs(tmp_path / "h2") == ["early"]
    back.join()


def test_the_earlier_one_does_not_wait_for_ever(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("late", 2.0))
    with pytest.raises(leases.HeldError, match="job late"):
        leases.take(str(folder), PORT, holder("early", 1.0), patience=0.5)


@contextmanager
def child(uid: int, action: Callable[[], object]) -> Iterator[None]:
    """A process of another user that does something and stays until it is ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
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
    with os.fdopen(reader, "rb") as stream:
        assert stream.read(1) == b"k"
    yield
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def acts(uid: int, action: Callable[[], object]) -> None:
    """Do something as another user, to its end."""
    with child(uid, action):
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
FIELDS: dict[str, list[Any]] = {
    "state": ["for ever", []],
    "created_at": [None, float("nan"), 10**400],
    "since": [float("inf"), -1e30],
    "job": ["x\x1b]0;owned\x07", "../../x"],
    "task": ["worker-0\n", 3],
    "attempt": [float("inf"), "first"],
    "net": ["net:[x]"],
    "resources": [None, "port/12345", ["port/12345", 3], ["port/12345", "gpu/../x"]],
}
for name, values in FIELDS.items():
    UNSOUND += [json.dumps(sound(**{name: value})).encode() for value in values]


def test_a_lock_holds_a_lease_and_nothing_else(folder: Path) -> None:
    folder.mkdir()
    texts = [json.dumps(sound()).encode(), *UNSOUND]
    paths = [forged(folder, text, number) for number, text in enumerate(texts)]
    descriptor, *others = map(lock, paths)
    assert jobs(folder) == ["forged"] * 3
    os.close(descriptor)
    assert leases.entries(str(folder)) == []
    assert paths[0].exists(), "a look changes nothing"
    assert leases.wait(str(folder), {"port/9": "port 9"}, holder("b", 2.0), 0) == []
    assert not paths[0].exists()
    assert all(path.exists() for path in paths[1:])
    leases.take(str(folder), PORT, holder("b", 2.0))
    for other in others:
        os.close(other)


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
    refused = rf"^{folder} cannot be used: .* \(of user {leases.user_name(os.getuid())},"
    link, fifo = partial(folder.symlink_to, target), partial(os.mkfifo, folder)
    for make in (folder.touch, link, fifo):
        make()
        with pytest.raises(leases.LeaseError, match=refused):
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
    """Garbage and forged leases; the folder is removed and made again."""
    secret = folder.parent / "secret"
    secret.write_text(json.dumps(sound()))

    def spoil() -> None:
        names = os.listdir(folder)
        own = (folder / names[0]).read_bytes()
        for name in names:
            for act in (os.unlink, (folder / name).write_text):
                with pytest.raises(PermissionError):
                    act(str(folder / name))
        states = [json.dumps(sound(state=name)).encode() for name in ("queued", "taken", "started")]
        forgeries = [*UNSOUND, *states, own.replace(b"mine", b"your")]
        texts = itertools.product((0o600, 0o644, 0o666), forgeries)
        for number, (mode, text) in enumerate(texts, start=5):
            forged(folder, text, number).chmod(mode)
        os.truncate(forged(folder, b"", 4), 2**32)
        first, second, fifo, directory = (folder / f"lease-{n:032x}.json" for n in range(4))
        first.symlink_to(folder / names[0])
        second.symlink_to(secret)
        os.mkfifo(fifo, 0o666)
        directory.mkdir()
        (folder / "leases.json").write_text("[" * 100_000)

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
    with child(MALLORY, lambda: lock(forged(folder, text))):
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
    with child(MALLORY, lambda: lock(folder)):
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

    with child(MALLORY, threading.Thread(target=snatch, daemon=True).start):
        for number in range(30):
            who = holder(f"job{number}", float(number))
            leases.take(str(folder), PORT, who)
            assert jobs(folder) == [who.job]
            assert leases.wait(str(folder), PORT, who, 0) == []
            assert queue(folder) == [who.job]
            leases.give_back(str(folder), who)
