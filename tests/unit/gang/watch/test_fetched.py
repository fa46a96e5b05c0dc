"""The copies of ranks' files of any size on the control node, from real folders."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train.gang.job_records import EVENTS_FILE
from train.gang.watch import notices, polling, verdict, watching
from train.gang.watch.fetched import OLDER
from train.gang.watch.follow import FollowedGang
from train.gang.watch.polling import Limits, Poll
from train.gang.watch.views import Target
from train.host import json_files, limited, progress_records, rank_files, ranks, records, updates

MIB = 1 << 20
LINE = b"%07d " + b"x" * 91 + b"\n"


def lines(count: int) -> bytes:
    return b"".join(LINE % number for number in range(count))


def note(rank_dir: Path, phase: str, **state: Any) -> None:
    """Write a rank's state."""
    json_files.write_json(str(rank_dir / rank_files.STATE_FILE), {"phase": phase, **state})


class Machine:
    """Followed ranks of one machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.targets: list[Target] = []
        self.said: list[str] = []
        self.poll: Poll = lambda _, *asked: updates.wait_for_updates(*asked)
        # A living supervisor cannot be faked.
        monkeypatch.setattr(ranks, "observe", ranks.noted)

    def rank(self, log: bytes = b"", progress: bytes = b"", **state: Any) -> Path:
        task = f"worker-{len(self.targets)}"
        rank_dir = self.folder / task
        rank_dir.mkdir()
        (rank_dir / rank_files.LOG_FILE).write_bytes(log)
        (rank_dir / rank_files.PROGRESS_FILE).write_bytes(progress)
        note(rank_dir, **{"phase": records.COMPLETED, "exit_code": 0, **state})
        self.targets.append(Target("host-a", task, str(rank_dir), "python3", "here", False))
        return rank_dir

    def gang(self, log_limit: int = 256 * MIB, interval: float = 0.0) -> FollowedGang:
        given = Limits(5.0, 5.0, interval, log_limit=log_limit, straggler_factor=1.5)
        probe: Any = None
        folder, say = self.run_dir, self.said.append
        return FollowedGang(self.targets, folder, self.poll, say, given, {}, probe, "")

    def copy(self, name: str = "logs/worker-0.log") -> bytes:
        """Return the copy of a file, preceded by the previous copy."""
        older = self.run_dir / (name + OLDER)
        before = older.read_bytes() if older.exists() else b""
        return before + (self.run_dir / name).read_bytes()

    def notices(self, kind: str) -> list[str]:
        events = map(json.loads, (self.run_dir / EVENTS_FILE).read_text().splitlines())
        told = [event["notice"] for event in events if "notice" in event]
        return [notice["text"] for notice in told if notice["kind"] == kind]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def keeps_writing() -> Iterator[Callable[[Path], None]]:
    """Make a rank write to its log until the test ends."""
    over, threads = threading.Event(), []

    def write(rank_dir: Path) -> None:
        with (rank_dir / rank_files.LOG_FILE).open("ab", buffering=0) as stream:
            while not over.wait(0.01):
                stream.write(lines(1_000))

    def begin(rank_dir: Path) -> None:
        threads.append(threading.Thread(target=write, args=(rank_dir,)))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


def test_a_large_log_comes_without_a_pause_and_byte_for_byte(machine: Machine) -> None:
    data = bytes(range(256)) * 80_000  # 20 MB
    machine.rank(data)
    machine.rank(b"small\n")
    began = time.monotonic()
    assert machine.gang(interval=5.0).follow().state == "completed"
    # With a pause of the interval after each answer, it would take more than 25 s.
    assert time.monotonic() - began < 15
    assert machine.copy() == data
    assert machine.copy("logs/worker-1.log") == b"small\n"
    assert machine.notices("left_out") == []


def test_of_a_log_above_the_limit_the_first_and_the_last_part_are_kept(machine: Machine) -> None:
    data = lines(200_000)  # 20 MB
    rank_dir = machine.rank(data)
    gang = machine.gang(MIB)
    assert gang.follow().state == "completed"
    copy = machine.copy()
    assert len(copy) <= MIB
    head, mark, rest = copy.partition(b"\n... ")
    told, _, newest = rest.partition(b" ...\n")
    assert mark
    assert data.startswith(head)
    assert len(head) > 10_000
    assert data.endswith(newest)
    assert len(newest) > MIB // 4
    assert b"18 MiB omitted here: the complete log is " in told
    assert told.endswith(f"host-a:{rank_dir}/stdout.log".encode())
    assert list(gang.views[0].tail)[-1] == (LINE % 199_999).decode().strip()
    (notice,) = machine.notices("left_out")
    assert notice in machine.said
    assert "worker-0 (host-a): parts of its log were not fetched (train_job_log_limit_mb)" in notice


def test_a_watch_continues_a_copy_with_a_gap(machine: Machine) -> None:
    rank_dir = machine.rank(lines(200_000))
    first = machine.gang(MIB)
    first.follow()
    first.close()
    with (rank_dir / rank_files.LOG_FILE).open("ab") as stream:
        stream.write(b"more\n")
    before = machine.copy()
    assert machine.gang(MIB).follow().state == "completed"
    assert machine.copy() == before + b"more\n"


def test_logs_shows_a_copy_with_a_gap(machine: Machine) -> None:
    data = lines(200_000)
    machine.rank(data)
    given = Limits(5.0, 5.0, 0.0, log_limit=MIB)
    logs = watching._Logs(machine.targets, machine.run_dir, machine.poll, given, "busy")
    assert logs.fetch([0], growing=False)["lost"] == {}
    copy = machine.copy()
    assert copy.count(b"omitted here") == 1
    assert data.endswith(copy.partition(b" ...\n")[2])
    begin = len(data) - 500
    logs = watching._Logs(machine.targets, machine.run_dir, machine.poll, given, "busy")
    logs.fetch([begin], growing=False)
    assert machine.copy() == data[begin:]


def test_progress_above_the_limit_is_whole_records(machine: Machine) -> None:
    record = {"phase": "training", "steps": 200_000, "metrics": {"accuracy": 0.5}}
    data = b"".join(json.dumps({**record, "step": n}).encode() + b"\n" for n in range(200_000))
    machine.rank(progress=data)
    gang = machine.gang(MIB)
    assert gang.follow().state == "completed"
    copy = machine.copy("progress/worker-0.jsonl")
    assert len(copy) <= MIB
    found, wrong = progress_records.read_progress(copy.decode())
    assert len(wrong) <= 1, "the record before the gap"
    assert found[-1]["step"] == gang.views[0].record["step"] == 199_999
    assert machine.notices("progress") == []


def test_what_a_host_has_freed_is_left_out(machine: Machine) -> None:
    data = lines(200_000)
    rank_dir = machine.rank()
    path = rank_dir / rank_files.LOG_FILE
    path.write_bytes(data)
    file = limited.LimitedFile(str(path), MIB)
    hole = file.wanted()
    assert hole is not None
    note(rank_dir, records.COMPLETED, exit_code=0, left_out={"log": list(hole)})
    file.free(hole)
    machine.gang().follow()
    copy = machine.copy()
    assert b"\0" not in copy
    head, _, rest = copy.partition(b"\n... ")
    told, _, newest = rest.partition(b" ...\n")
    assert head == data[: hole[0]]
    assert data[hole[1] :].endswith(newest)
    assert b"omitted here: its beginning and newest part are in host-a:" in told


def test_the_last_lines_are_those_of_the_end_though_it_has_not_come(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 0.5)
    monkeypatch.setattr(polling, "_ANSWER_MOST", MIB)
    ask = machine.poll

    def slowly(*asked: Any) -> Any:
        time.sleep(0.6)
        return ask(*asked)

    machine.poll = slowly
    machine.rank(b"")
    failure: Any = {"phase": records.FAILED, "exit_code": 1, "reason": "exited with code 1"}
    machine.rank(lines(100_000) + b"before the end\nValueError: wrong\n", **failure)
    outcome = machine.gang().follow()
    assert outcome.root_cause == "worker-1"
    assert outcome.message.endswith("its last lines:\n  ValueError: wrong")


def test_a_line_longer_than_a_piece(machine: Machine) -> None:
    data = b"first\n" + b"y" * (3 * MIB) + b"\nlast\n"
    machine.rank(data)
    gang = machine.gang(MIB)
    gang.follow()
    copy = machine.copy()
    assert len(copy) <= MIB
    assert copy.startswith(b"first\n")
    assert copy.endswith(b"yyy\nlast\n")
    assert list(gang.views[0].tail)[-1] == "last"


def test_a_log_that_the_script_empties_is_fetched_further(machine: Machine) -> None:
    rank_dir = machine.rank(lines(10_000), phase=records.RUNNING)
    path = rank_dir / rank_files.LOG_FILE

    def begin_again() -> None:
        path.write_bytes(b"begun again\n")
        note(rank_dir, records.COMPLETED, exit_code=0)

    threading.Timer(1.0, begin_again).start()
    assert machine.gang().follow().state == "completed"
    assert machine.copy() == lines(10_000) + b"begun again\n"


def test_a_talkative_rank_does_not_hide_the_failure_of_another(
    machine: Machine, keeps_writing: Callable[[Path], None]
) -> None:
    keeps_writing(machine.rank(phase=records.RUNNING))
    other = machine.rank(b"starts\n", phase=records.RUNNING)
    failure = {"exit_code": 3, "cause": "exit", "reason": "exited with code 3"}
    failed_at: list[float] = []

    def fail() -> None:
        failed_at.append(time.monotonic())
        note(other, records.FAILED, **failure)

    threading.Timer(1.5, fail).start()
    outcome = machine.gang(8 * MIB, interval=2.0).follow()
    assert time.monotonic() - failed_at[0] < 10
    assert outcome.root_cause == "worker-1"
    assert "exited with code 3" in outcome.message


@pytest.mark.parametrize("phase", [records.RUNNING, records.FAILED])
def test_the_rest_is_fetched_though_a_rank_keeps_writing(
    machine: Machine, keeps_writing: Callable[[Path], None], phase: str
) -> None:
    keeps_writing(machine.rank(lines(10_000), phase=phase))
    machine.gang(64 * MIB).drain()
    assert machine.copy().startswith(lines(10_000))


def test_how_much_is_fetched_is_shown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FETCH_EVERY", 0.0)
    machine.rank(lines(200_000))
    gang = machine.gang()
    said: list[str] = []
    gang.drain(said.append)
    assert said
    assert said == machine.notices("fetching")
    assert said[0].endswith(" of 19 MB") or said[0].endswith(" of 20 MB")
    assert machine.copy() == lines(200_000)
    gang.close()
    said.clear()
    machine.gang().drain(said.append)
    assert said == []


def test_many_answers_are_few_events(machine: Machine) -> None:
    machine.rank(lines(300_000))
    machine.gang(4 * MIB).follow()
    events = (machine.run_dir / EVENTS_FILE).read_text().splitlines()
    of_ranks = [event for event in map(json.loads, events) if "task" in event]
    assert 1 <= len(of_ranks) <= 20
    assert of_ranks[0]["last_line"] == (LINE % 299_999).decode().strip()
