"""Leases of ports and GPUs: real processes that compete, are killed, wait and take over.

Several users share the folder of leases, one of them hostile.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import multiprocessing
import os
import re
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.bare_ranks import stage, wait_until
from tests.support.lab import REPOSITORY
from tests.support.lease_ranks import PORT, Starter, holder, jobs, queue, spec_of
from train.host import calls, leases, preflight, records

GPU = {"gpu/GPU-a": "GPU 0"}
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
ANNA, MALLORY = 12_001, 65_534
UNSTICKY = "it lacks the sticky bit, so other users can remove leases from it"
REMEDY = "remove that path, or choose another train_job_lease_dir"
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield the path of a new folder that other users can enter, unlike pytest's own folders."""
    parent = Path(tempfile.mkdtemp(prefix="test-leases-", dir="/tmp"))
    parent.chmod(0o1777)
    yield parent / "leases"
    shutil.rmtree(parent)


def wait_until_free(folder: Path) -> None:
    wait_until(lambda: jobs(folder) == [], "the leases", timeout=20)


def refused(folder: Path, resources: Any, who: Any, patience: float = leases.PATIENCE_S) -> str:
    with pytest.raises(leases.HeldError) as raised:
        leases.take(str(folder), resources, who, patience=patience)
    return str(raised.value)


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
    why = refused(folder, GPU, holder("c", 2.0))
    assert re.match(r"GPU 0 is reserved for worker-0 of job a .*; GPU 0", why)
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
    expected = f"port 12345 is in use by worker-1 of job night-1 (user {user}, since {year}"
    assert refused(folder, {**GPU, **PORT}, holder("day", 0.5)).startswith(expected)
    assert time.monotonic() - began < 5, "a job that runs is not waited for"
    assert [lease["resource"] for lease in leases.holders(str(folder))] == ["port/12345"]
    assert jobs(folder) == ["night-1"]
    assert len(os.listdir(folder)) == 1, "what was taken is now held"


def test_a_port_that_a_job_has_is_refused_waited_for_or_its_own(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"))
    held = leases.holders(str(folder))
    (problem,) = preflight.check_port(12345, "b", held, wait=0)
    assert problem.startswith("port 12345 is reserved for worker-0 of job a (user ")
    assert problem.endswith(f"stop that job, choose another train_job_port, {preflight.WAIT}")
    assert preflight.check_port(12345, "b", held, wait=60) == []
    assert preflight.check_port(12345, "a", held, wait=0) == []


def test_neither_a_child_that_survives_nor_the_watchdog_keeps_a_lease(folder: Path) -> None:
    """The watchdog is the supervisor's parent, and the script starts after the leases are taken."""
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
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as watchdog:
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
            os.kill(child, 9)


def test_the_next_attempt_takes_over(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    assert first.starts(folder, holder("a")) is None
    # Another task of the same host, because the gang has shrunk.
    assert second.starts(folder, holder("a", task="chief-0", attempt=2)) is None
    third = supervisor()
    why = third.starts(folder, holder("a"))
    assert "is in use by chief-0 of job a" in why, "no attempt takes over a later one"
    first.ask("release")
    second.renews()
    assert jobs(folder) == ["a"]
    # A second job with the same name is a different job.
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
        why = late.confirms(folder, holder("late"))
        late.ask("release")
        assert (why is None) == (other is None)
    assert "port 12345 is in use by worker-0 of job other" in why


def test_one_start_of_a_rank(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    leases.take(str(folder), PORT, holder("a"))
    assert first.confirms(folder, holder("a")) is None
    assert "port 12345 is in use by worker-0 of job a (" in second.confirms(folder, holder("a"))
    second.ask("release")
    leases.release_rank(spec_of(folder, holder("a"), PORT))
    assert jobs(folder) == ["a"], "what another start holds is not given back"


@pytest.mark.parametrize("check", [True, False])
def test_a_stop_gives_back_what_a_rank_has_that_never_started(folder: Path, check: bool) -> None:
    leases.take(str(folder), PORT, holder("bare"))
    noted = spec_of(folder, holder("bare"), PORT)["leases"]
    stage(folder.parent, "worker-0", Path(__file__), leases=noted)
    about = {"root": str(folder.parent), "job": "bare", "host": "worker-0", "check": check}
    report = calls.stop({**about, "grace": 0, "reason": "enough"})
    assert (report["changed"], report["stop_report"]["was"]) == (True, "starting")
    assert jobs(folder) == (["bare"] if check else [])


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
    assert "is in use by worker-0 of job a" in supervisor().confirms(folder, holder("b", 2.0))
    # It keeps running even if another job takes its lease meanwhile.
    remove()
    leases.take(str(folder), PORT, holder("b", 2.0))
    first.renews()
    assert jobs(folder) == ["a", "a", "b"]
    first.ask("release")
    assert jobs(folder) == ["b"], "what is another's is not given back"


def test_ports_are_those_of_a_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs belong to the machine."""
    leases.take(str(folder), {**PORT, **GPU}, holder("a"))
    monkeypatch.setattr(leases, "_network", lambda: "net:[1]")
    leases.take(str(folder), PORT, holder("b", 2.0))
    assert "GPU 0 is reserved for" in refused(folder, GPU, holder("b", 2.0))
    found = [(lease["job"], lease["resource"]) for lease in leases.holders(str(folder))]
    assert found == [("a", "gpu/GPU-a"), ("b", "port/12345")]


def test_a_rank_without_port_and_gpus_needs_no_folder(folder: Path) -> None:
    leases.take(str(folder), {}, holder("a"))
    held = leases.Held(spec_of(folder, holder("a"), {}))
    held.confirm()
    held._due = 0.0
    held.renew()
    held.release()
    leases.release_rank(cast(records.RankSpec, {}))  # rank.json is truncated
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
    assert text.startswith("port 12345 is claimed by worker-0 of job early (user ")
    assert "waiting since" in text
    for later in (late, holder("hasty", 3.0)):
        assert "is claimed by worker-0 of job early" in refused(folder, PORT, later)
    assert leases.wait(place, {"port/9": "port 9"}, holder("elsewhere", 4.0), 0) == []
    # For jobs of the same time, the id decides.
    assert leases.wait(place, PORT, holder("a", 1.0), 0) == []
    assert leases.wait(place, PORT, early, 0)[0]["job"] == "a"
    # The order of arrival here does not matter.
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
    assert "job early" in refused(tmp_path / "h1", PORT, late)
    assert time.monotonic() - began < 5, "the later one does not wait"
    back = threading.Timer(0.7, leases.give_back, (other, late))
    back.start()
    leases.take(other, PORT, early)  # the earlier job waits until the lease is released
    assert jobs(tmp_path / "h2") == ["early"]
    back.join()
    # But it does not wait forever.
    leases.take(str(tmp_path / "h3"), PORT, late)
    assert "job late" in refused(tmp_path / "h3", PORT, early, patience=0.5)


@contextmanager
def child(uid: int, action: Callable[[], object]) -> Iterator[None]:
    """Run a process of another user that calls ``action`` and stays until it is ended."""
    done = FORK.Event()

    def act() -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        action()
        done.set()
        time.sleep(120)

    process = FORK.Process(target=act, daemon=True)
    process.start()
    while not done.wait(0.1):
        assert process.is_alive()
    yield
    process.kill()
    process.join()


def acts(uid: int, action: Callable[[], object]) -> None:
    with child(uid, action):
        pass


def lock(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Lock a file or a folder for the life of this process; return the descriptor."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    return descriptor


def forged(folder: Path, text: bytes, number: int = 0) -> Path:
    path = folder / f"lease-{number:032x}.json"
    path.write_bytes(text)
    return path


def sound(**fields: Any) -> dict[str, Any]:
    """Return the fields of a valid lease."""
    who = {**holder("forged", 0.5)._asdict(), "net": os.readlink("/proc/self/ns/net")}
    resources = ["port/12345", "port/12346", "gpu/GPU-a"]
    return {"state": "started", "since": 1.0, "resources": resources, **who, **fields}


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
    "state": ["for ever", [], "stopped"],  # a note of a stop has no resources
    "created_at": [None, float("nan"), 10**400],
    "since": [float("inf"), -1e30],
    "job": ["x\x1b]0;owned\x07", "../../x"],
    "task": ["worker-0\n", 3],
    "attempt": [float("inf"), "first"],
    "net": ["net:[x]"],
    "resources": [
        None,
        "port/12345",
        ["port/12345", 3],
        ["port/12345", "gpu/../x"],
        ["port/1"] * 200,
    ],
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
    assert paths[0].exists(), "listing the leases changes nothing"
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


def test_a_folder_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_PAUSES", (0.0, 0.1))
    spec = spec_of(folder, holder("a"), PORT)
    held = leases.Held(spec)
    request = {"folder": str(folder), "resources": PORT, "holder": list(holder("a"))}
    target = folder.parent / "target"
    target.mkdir()
    expected = rf"^{folder} cannot be used: .* \(owned by {leases.user_name(os.getuid())},"
    for make in (folder.touch, partial(folder.symlink_to, target), partial(os.mkfifo, folder)):
        make()
        with pytest.raises(leases.LeaseError, match=expected):
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


def test_a_full_disk_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert f"job theirs (user uid {ANNA}, since" in refused(folder, PORT, holder("mine", 2.0))
    leases.take(str(folder), {"port/2": "port 2"}, holder("mine", 2.0))
    # Jobs of two users with the same name and time are two jobs.
    for who in (holder("more", 3.0), holder("mine", 2.0, attempt=2)):
        why = other.ask("take", str(folder), {"port/2": "port 2"}, who)
        assert "port 2 is reserved for worker-0 of job mine (user root" in why
    other.ask("give_back", str(folder), holder("mine", 2.0, attempt=2))
    other.ask("release")
    assert jobs(folder) == ["mine"]


@needs_root
@pytest.mark.parametrize("who", [0, ANNA], ids=["root", "a user"])
def test_what_another_user_writes(folder: Path, supervisor: Starter, who: int) -> None:
    """Garbage, forged leases and a recreated folder neither end nor reject a rank."""
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

    modes = (0o1777, 0o755, 0o700)  # of a folder that belongs to mallory
    for number in range(6):
        shutil.rmtree(folder)
        rank.renews()
        if number % 2:
            shutil.rmtree(folder)
            acts(MALLORY, folder.mkdir)
            folder.chmod(modes[number // 2])
            rank.renews()
        problem = late.starts(folder, holder("late", 2.0), free)
        assert bool(problem) == (number in (3, 5))
        if problem:  # stage only warns about it
            mode = modes[number // 2]
            closed = mode == 0o700 and who != 0
            why = "Permission denied" if closed else UNSTICKY
            why += f" (owned by nobody, mode {mode:o})"
            assert problem == f"{folder} cannot be used: {why}: {REMEDY}"
            assert late.confirms(folder, holder("late", 2.0), free) is None
        late.ask("release")
    rank.ask("release")
    assert json.loads(secret.read_text()) == sound()


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "good"),
    [
        *((MALLORY, mode, mode == 0o1777) for mode in (0o1777, 0o777, 0o2770, 0o775, 0o755)),
        *((0, mode, mode == 0o1777) for mode in (0o1777, 0o777, 0o2777, 0o775)),
        *((ANNA, mode, True) for mode in (0o1777, 0o777, 0o700)),
    ],
)
def test_a_folder_in_which_others_can_remove_leases(
    folder: Path, supervisor: Starter, owner: int, mode: int, good: bool
) -> None:
    folder.mkdir()
    os.chown(folder, owner, ANNA)
    folder.chmod(mode)
    rank = supervisor()
    rank.ask("setuid", ANNA)
    rank.ask("__setattr__", "_PAUSES", (0.0,))
    problem = rank.ask("take", str(folder), PORT, holder("a"))
    if good:
        assert problem is None
        assert jobs(folder) == ["a"]
    else:
        why = f"{UNSTICKY} (owned by {leases.user_name(owner)}, mode {mode:o})"
        if not mode & 0o005:
            why = why.replace(UNSTICKY, "Permission denied")
        assert problem == f"{folder} cannot be used: {why}: {REMEDY}"
        assert list(folder.iterdir()) == []


@needs_root
def test_one_user_with_many_files_slows_and_conceals_no_other_one(
    folder: Path, supervisor: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MOST_OF_A_USER", 20)
    folder.mkdir()
    folder.chmod(0o1777)
    anna = supervisor()
    anna.ask("setuid", ANNA)
    assert anna.starts(folder, holder("hers")) is None
    leases.take(str(folder), {"port/1": "port 1"}, holder("mine", 2.0))
    text = json.dumps(sound(job="junk")).encode()

    def fill() -> None:
        for number in range(400):
            lock(forged(folder, text, number))

    opened: list[str] = []
    entry = leases._entry

    def count(folder: int, name: str, prune: bool) -> Any:
        opened.append(name)
        return entry(folder, name, prune)

    monkeypatch.setattr(leases, "_entry", count)
    # Locked or not, and visible in /proc/locks or not. The rest is in the order of the folder.
    for locked in (True, False):
        with child(MALLORY, fill):
            if not locked:
                monkeypatch.setattr(leases, "_locked_inodes", lambda: set[int]())
                monkeypatch.setattr(leases, "MOST_OF_A_USER", 41)
            opened.clear()
            found = jobs(folder)
            assert {"hers", "mine"} <= set(found)
            assert len(opened) == leases.MOST_OF_A_USER + 2
            assert found.count("junk") == 3 * leases.MOST_OF_A_USER  # each has three resources
        for number in range(400):
            forged(folder, b"", number).unlink()


@needs_root
def test_who_really_holds_a_lock_delays_a_job_under_their_own_name(folder: Path) -> None:
    leases.give_back(str(folder), holder("nothing"))
    folder.mkdir()
    folder.chmod(0o1777)
    text = json.dumps(sound(user="anna", own=True, job="night-1")).encode()
    with child(MALLORY, lambda: lock(forged(folder, text))):
        why = refused(folder, PORT, holder("night-1", 0.5, attempt=2))
        assert "port 12345 is in use by worker-0 of job night-1 (user nobody, since" in why
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
def test_no_other_user_locks_a_new_file_before_its_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, tried = fcntl.flock, []

    def snatch() -> None:
        (path,) = folder.iterdir()
        with pytest.raises(PermissionError):
            lock(path, fcntl.LOCK_SH)

    def lock_late(descriptor: int, kind: int) -> None:
        if kind == fcntl.LOCK_EX:  # the lock of the folder does not wait
            acts(MALLORY, snatch)
            tried.append(descriptor)
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    leases.take(str(folder), PORT, holder("a"))
    leases.give_back(str(folder), holder("a"))
    leases.wait(str(folder), PORT, holder("a"), 0)
    assert len(tried) == 2
    assert queue(folder) == ["a"]


def test_a_stop_holds_for_the_rank_that_waited_and_not_for_another_start(folder: Path) -> None:
    here, one, second = str(folder), holder("a", 1.0), holder("a", 1.0, attempt=2)
    leases.take(here, PORT, one)
    assert leases.stop_job(here, "a", "was stopped by anna") == 1
    assert jobs(folder) == []
    with pytest.raises(leases.StoppedError, match="was stopped by anna"):
        leases.take(here, PORT, one)
    request = {"folder": here, "resources": PORT, "holder": list(one), "seconds": 0}
    stopped = {"blockers": [], "stopped": "was stopped by anna"}
    assert leases.answer({**request, "do": "wait"}) == stopped
    leases.take(here, PORT, second)  # a later attempt, or another job of the same name
    leases.give_back(here, second)
    leases.take(here, PORT, holder("a", 2.0))
    leases.give_back(here, holder("a", 2.0))
    assert leases.answer({**request, "do": "queue"}) == {"blockers": []}
    leases.take(here, PORT, one)
    leases.give_back(here, one)


def test_without_a_process_that_holds_it_nothing_is_leased(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = iter([os.fork])

    def fork() -> int:
        for real in forks:
            return real()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(leases.LeaseError, match="no further process can be started"):
        leases.take(str(folder), GPU, holder("a"))
    with pytest.raises(leases.LeaseError, match="temporarily unavailable"):
        leases.take(str(folder), GPU, holder("a"))
    monkeypatch.undo()
    assert jobs(folder) == []
    assert [*folder.iterdir()] == []
    leases.take(str(folder), GPU, holder("a"))
    assert jobs(folder) == ["a"]
