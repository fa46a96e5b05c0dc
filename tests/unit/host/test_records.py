"""Progress records, files that are written in one step, and numbers in texts from outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from train.host import gpus, records
from train.host.records import Progress, ProgressWriter


def test_records_that_cannot_be_written_are_one_warning_and_the_next_ones_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "progress"
    writer = ProgressWriter(str(path))
    writer.path = "/dev/full"
    for step in (1, 2):
        writer.write("training", force=True, step=step)
    assert capsys.readouterr().err == (
        "warning: cannot write full: [Errno 28] No space left on device; "
        "records are lost until that succeeds\n"
    )
    path.write_text('{"phase": "training", "st')  # as much of a record as there was space for
    writer.path = str(path)
    for step in (3, 4):
        writer.write("training", force=True, step=step)
    found, wrong = records.read_progress(path.read_text())
    assert [record["step"] for record in found] == [3, 4]
    assert [place for place, _ in wrong] == [0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"source": "console", "step": 4}, {"source": "console", "step": 4, "loss": 0.7}),
        (
            {"source": "console", "approximate": {"loss": 0.5}},
            {"source": "console", "step": 3, "loss": 0.7, "approximate": {"loss": 0.5}},
        ),
        ({"step": 1}, {"step": 1}),  # of the script itself
    ],
)
def test_what_still_holds_of_earlier_records(record: Progress, expected: Progress) -> None:
    earlier: Progress = {"source": "console", "step": 3, "loss": 0.7, "approximate": {"loss": 0.6}}
    assert records.with_earlier(record, earlier) == expected


@pytest.mark.parametrize(
    ("record", "whole"),
    [
        ({"metrics": {"a": 0.5}}, True),
        ({"source": "console", "batch": 9, "batches": 9}, True),
        ({"source": "console", "batch": 8, "batches": 9}, False),
        ({"source": "console", "batch": 8}, False),
    ],
)
def test_whether_metrics_are_final(record: Progress, whole: bool) -> None:
    assert records.is_whole(record) is whole


def test_approximate_values_are_checked_as_metrics_are() -> None:
    value = {"approximate": {"loss": 0.5, "a": "NaN", "b": None}}
    assert records.check_progress(value) == {"approximate": {"loss": 0.5, "a": "NaN"}}
    with pytest.raises(ValueError, match="approximate"):
        records.check_progress({"approximate": {"loss": "low"}})


def test_a_file_is_written_whatever_lies_at_names_that_others_can_guess(tmp_path: Path) -> None:
    path, victim = tmp_path / "state.json", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"state.json.{os.getpid()}.tmp").symlink_to(victim)
    before = os.umask(0o022)
    try:
        records.write_text(str(path), "new", mode=0o640)
    finally:
        os.umask(before)
    assert (path.read_text(), victim.read_text()) == ("new", "precious")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_temporary_file_is_new_and_has_another_name_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, replace = [], os.replace

    def noted(source: str, target: str) -> None:
        names.append(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    for _ in range(2):
        records.write_text(str(tmp_path / "a"), "text")
    assert len(set(names)) == 2
    assert all(name.startswith(f"{tmp_path}/a.") and name.endswith(".tmp") for name in names)
    # One that is there already, by whatever chance, is neither followed nor overwritten.
    monkeypatch.setattr(os, "urandom", bytes)
    taken = tmp_path / f"a.{bytes(8).hex()}.tmp"
    taken.write_text("another's")
    with pytest.raises(FileExistsError):
        records.write_text(str(tmp_path / "a"), "newer")
    assert ((tmp_path / "a").read_text(), taken.read_text()) == ("text", "another's")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.write_text(str(tmp_path / "a"), "old")

    def fail(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        records.write_text(str(tmp_path / "a"), "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("text", ["²", "٣", "1²", "", "-1", "+1", "1_0", " 1", "1\n", "1.0"])
def test_what_is_no_number(text: str) -> None:
    assert not records.is_number(text)
    assert records.task_order(f"worker-{text}") == records.task_order("worker-x")


def test_numbers() -> None:
    assert all(map(records.is_number, ("0", "10", "007")))
    assert records.task_order("worker-10") > records.task_order("worker-9")
    # Where a program's answer is read.
    assert not gpus._GPU.match("GPU ٣: NVIDIA H100 (UUID: GPU-a)")
