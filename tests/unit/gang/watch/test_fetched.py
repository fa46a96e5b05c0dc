"""The copies of ranks' files of any size on the control node, from real folders."""

from __future__ import annotations

import json
import threading

from tests.unit.gang.watch.real_folders import LINE, MIB, Machine, lines, note
from train.host import limited, progress_records, rank_files, records


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
