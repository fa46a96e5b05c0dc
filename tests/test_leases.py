"""Leases of ports and GPUs: real processes that compete, are killed, wait and take over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lease_ranks import PORT, Supervisor, change, holder, saved, spec_of
from train.host import leases, processes
from train.host.lease_file import LeaseFile, user_name

GPU = {"gpu/GPU-a": "GPU 0"}
Starter = Callable[[], Supervisor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def supervisor() -> Iterator[Starter]:
    made: list[Supervisor] = []

    def make() -> Supervisor:
        made.append(Supervisor())
        return made[-1]

    yield make
    for process in made:
        process.process.kill()
        process.process.join()


def test_what_a_rank_wants() -> None:
    machine = [
        {"index": 0, "uuid": "GPU-a", "instances": ["MIG-1", "MIG-2"]},
        {"index": 1, "uuid": "GPU-b", "instances": []},
    ]
    assert leases.wanted(None, None, machine) == {}
    assert leases.wanted(12345, ["1", "0"], machine) == {
        "port/12345": "port 12345",
        "gpu/GPU-a": "GPU 0",
        "gpu/GPU-b": "GPU 1",
    }
    assert leases.wanted(1, ["MIG-2"], machine) == {
        "port/1": "port 1",
        "gpu/GPU-a/MIG-2": "MIG-2 of GPU 0",
    }
    assert leases.wanted(None, ["GPU-b"], machine) == {"gpu/GPU-b": "GPU 1"}


def test_a_whole_gpu_and_an_instance_of_it_exclude_each_other(folder: Path) -> None:
    one, other = {"gpu/GPU-a/MIG-1": "MIG-1"}, {"gpu/GPU-a/MIG-2": "MIG-2"}
    assert leases.take(str(folder), one, holder("a"))
    assert leases.take(str(folder), other, holder("b"))
    with pytest.raises(leases.HeldError, match=r"GPU 0 is taken for worker-0 of job a .*; GPU 0"):
        leases.take(str(folder), GPU, holder("c", 2.0))
    assert leases.take(str(folder), {"gpu/GPU-ab": "GPU 1"}, holder("c"))


def test_of_many_at_once_one_gets_everything(folder: Path, supervisor: Starter) -> None:
    wanted = [{**PORT, "gpu/GPU-a": "GPU 0"}, {"gpu/GPU-a": "GPU 0", "gpu/GPU-b": "GPU 1"}]
    ranks = [supervisor() for _ in range(6)]
    found: list[object] = [None] * 6

    def start(place: int) -> None:
        who = holder(f"job{place}", 1.0 + place)
        found[place] = ranks[place].starts(folder, who, wanted[place % 2])

    threads = [threading.Thread(target=start, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [place for place, answer in enumerate(found) if answer is None]
    for answer in found[:winner] + found[winner + 1 :]:
        assert f"of job job{winner} (user " in str(answer)
    held = {lease["resource"]: lease["job"] for lease in saved(folder)["leases"]}
    assert held == dict.fromkeys(wanted[winner % 2], f"job{winner}")


def test_a_refusal_names_the_holder_and_takes_nothing(folder: Path, supervisor: Starter) -> None:
    assert supervisor().starts(folder, holder("night-1", task="worker-1")) is None
    began = time.monotonic()
    with pytest.raises(leases.HeldError) as raised:
        leases.take(str(folder), {**GPU, **PORT}, holder("day", 0.5))
    assert time.monotonic() - began < 5, "a job that runs is not waited for"
    user = user_name(os.getuid())
    year = time.strftime("%Y-")
    expected = f"port 12345 is in use by worker-1 of job night-1 (user {user}, since {year}"
    assert str(raised.value).startswith(expected)
    assert [lease["resource"] for lease in saved(folder)["leases"]] == ["port/12345"]
    assert [found["job"] for found in leases.holders(str(folder))] == ["night-1"]


def test_a_killed_holder_holds_nothing(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    assert first.starts(folder, holder("a")) is None
    assert "job a" in second.starts(folder, holder("b", 2.0))
    first.kill()
    assert leases.holders(str(folder)) == []
    assert second.starts(folder, holder("b", 2.0)) is None


def test_a_pid_that_is_used_again_holds_nothing(folder: Path, supervisor: Starter) -> None:
    assert supervisor().starts(folder, holder("a")) is None
    change(folder, start=1)
    assert leases.take(str(folder), PORT, holder("b"))


def test_a_restart_of_the_machine_ends_all(folder: Path, supervisor: Starter) -> None:
    assert supervisor().starts(folder, holder("a")) is None
    leases.wait(str(folder), PORT, holder("b", 2.0), 0)
    change(folder, boot_id="another")
    with LeaseFile(str(folder)).locked() as state:
        state["queue"][0]["boot_id"] = "another"
    assert leases.take(str(folder), PORT, holder("c", 3.0))


def test_what_was_taken_and_never_started_expires(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"), seconds=60)
    with pytest.raises(leases.HeldError, match="port 12345 is taken for worker-0 of job a "):
        leases.take(str(folder), PORT, holder("b", 2.0))
    change(folder, expires=0.0)
    assert leases.take(str(folder), PORT, holder("b", 2.0))


def test_tokens_grow_and_the_clock_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [leases.take(str(folder), GPU, holder("a"), seconds=0.05)["gpu/GPU-a"]]
    for _ in range(3):
        time.sleep(0.06)
        tokens += leases.take(str(folder), GPU, holder("a"), seconds=0.05).values()
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real - 3600)
    tokens += leases.take(str(folder), GPU, holder("a"), seconds=30).values()
    assert tokens == sorted(set(tokens))
    monkeypatch.setattr(time, "time", lambda: real + 3600)
    assert len(leases.holders(str(folder))) == 1


def test_the_next_attempt_takes_over_and_the_earlier_one_ends(
    folder: Path, supervisor: Starter
) -> None:
    first, second = supervisor(), supervisor()
    assert first.starts(folder, holder("a")) is None
    assert first.renews() == ""
    # Another task of the same host: the gang got smaller.
    assert second.starts(folder, holder("a", task="chief-0", attempt=2)) is None
    assert first.renews().startswith("lost its lease: port 12345 is in use by chief-0 of job a")
    assert second.renews() == ""
    third = supervisor()
    refused = third.starts(folder, holder("a"))
    assert "is in use by chief-0 of job a" in refused, "no attempt takes over a later one"
    # Another job of the same name is another job.
    assert "job a" in third.starts(folder, holder("a", 7.0, attempt=3))


def test_an_earlier_attempt_gives_back_only_its_own(folder: Path) -> None:
    assert leases.take(str(folder), PORT, holder("a", attempt=2))
    leases.give_back(str(folder), holder("a"))
    assert len(leases.holders(str(folder))) == 1
    leases.give_back(str(folder), holder("a", attempt=2))
    assert leases.holders(str(folder)) == []


def test_a_start_that_comes_too_late(folder: Path, supervisor: Starter) -> None:
    late = supervisor()
    tokens = leases.take(str(folder), PORT, holder("late"), seconds=0.05)
    spec = spec_of(folder, holder("late"), PORT, tokens)
    late.ask("held", spec)
    time.sleep(0.1)
    assert late.ask("confirm") is None, "nobody else wanted it"
    late.ask("release")

    again = leases.take(str(folder), PORT, holder("late"), seconds=0.05)
    time.sleep(0.1)
    assert supervisor().starts(folder, holder("other", 2.0)) is None
    late.ask("held", spec_of(folder, holder("late"), PORT, again))
    assert "port 12345 is in use by worker-0 of job other" in late.ask("confirm")


def test_one_start_of_a_rank(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    tokens = leases.take(str(folder), PORT, holder("a"))
    for process in (first, second):
        process.ask("held", spec_of(folder, holder("a"), PORT, tokens))
    assert first.ask("confirm") is None
    assert second.ask("confirm") == "port 12345 was taken for another start of this rank"
    second.ask("release")
    again = spec_of(folder, holder("a"), PORT, {"port/12345": 1})
    leases.release_rank(again)
    assert len(leases.holders(str(folder))) == 1, "what another start holds is not given back"
    assert first.renews() == ""


def test_a_lost_file_is_made_again_by_those_that_run(folder: Path, supervisor: Starter) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a"), {**PORT, **GPU}) is None
    before = saved(folder)["last_token"]
    for name in ("leases.json", "leases-copy.json"):
        (folder / name).unlink()
    # Who came in the meantime and has not started does so in vain.
    other = leases.take(str(folder), PORT, holder("b", 2.0))
    assert first.renews() == ""
    assert {lease["job"] for lease in saved(folder)["leases"]} == {"a"}
    assert saved(folder)["last_token"] > before
    late = supervisor()
    late.ask("held", spec_of(folder, holder("b", 2.0), PORT, other))
    assert "is in use by worker-0 of job a" in late.ask("confirm")
    first.ask("release")
    assert saved(folder)["leases"] == []


def test_a_supervisor_in_another_container_counts_while_it_renews(
    folder: Path, supervisor: Starter
) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a"), GPU) is None
    # It looks like a process that is not there, and only its own container knows better.
    change(folder, pid_ns="pid:[1]", pid=2**22, start=1)
    with pytest.raises(leases.HeldError, match="GPU 0 is in use by worker-0 of job a"):
        leases.take(str(folder), GPU, holder("b", 2.0))
    change(folder, expires=0.0)
    assert supervisor().starts(folder, holder("b", 2.0), GPU) is None
    assert "is in use by worker-0 of job b" in first.renews(), "it was away for too long"


def test_ports_are_those_of_a_network_and_gpus_those_of_the_machine(folder: Path) -> None:
    leases.take(str(folder), {**PORT, **GPU}, holder("a"))
    change(folder, net="net:[1]")
    assert leases.take(str(folder), PORT, holder("b", 2.0))
    with pytest.raises(leases.HeldError, match="GPU 0 is taken for"):
        leases.take(str(folder), GPU, holder("b", 2.0))
    assert [found["resource"] for found in leases.holders(str(folder))] == [
        "gpu/GPU-a",
        "port/12345",
    ]


def test_a_rank_without_port_and_gpus_needs_no_file(folder: Path) -> None:
    tokens = leases.take(str(folder), {}, holder("a"))
    held = leases.Held(spec_of(folder, holder("a"), {}, tokens))
    held.confirm()
    assert held.renew() == ""
    held.release()
    leases.release_rank({"job": "of an older version"})
    assert leases.holders(str(folder)) == []
    assert not folder.exists()


def test_the_dead_leave_the_file_with_the_next_change(folder: Path, supervisor: Starter) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a")) is None
    noted = saved(folder)["leases"][0]
    assert noted["pid"] == first.process.pid
    assert noted["start"] == processes.start_time(noted["pid"])
    first.kill()
    text = (folder / "leases.json").read_text()
    assert leases.holders(str(folder)) == []
    assert (folder / "leases.json").read_text() == text, "a look changes nothing"
    leases.take(str(folder), GPU, holder("b"))
    assert [lease["job"] for lease in saved(folder)["leases"]] == ["b"]
