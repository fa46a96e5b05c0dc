"""Progress records: writing, reading and merging them."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.host import progress_records
from train.host.progress_records import Progress, ProgressWriter


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
    path.write_text('{"phase": "training", "st')  # a record that was cut off by a full disk
    writer.path = str(path)
    for step in (3, 4):
        writer.write("training", force=True, step=step)
    found, wrong = progress_records.read_progress(path.read_text())
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
        ({"step": 1}, {"step": 1}),  # from the script itself
    ],
)
def test_what_still_holds_of_earlier_records(record: Progress, expected: Progress) -> None:
    earlier: Progress = {"source": "console", "step": 3, "loss": 0.7, "approximate": {"loss": 0.6}}
    assert progress_records.with_earlier(record, earlier) == expected


@pytest.mark.parametrize(
    ("record", "whole"),
    [
        ({"metrics": {"a": 0.5}}, True),
        ({"source": "console", "batch": 9, "batches": 9}, True),
        ({"source": "console", "batch": 8, "batches": 9}, False),
        ({"source": "console", "batch": 8}, False),
        ({"source": "console", "step": 8, "metrics": {"a": 0.5}}, True),  # of a loop's bar
    ],
)
def test_whether_metrics_are_final(record: Progress, whole: bool) -> None:
    assert progress_records.is_whole(record) is whole


def test_approximate_values_are_checked_as_metrics_are() -> None:
    value = {"approximate": {"loss": 0.5, "a": "NaN", "b": None}}
    assert progress_records.check_progress(value) == {"approximate": {"loss": 0.5, "a": "NaN"}}
    with pytest.raises(ValueError, match="approximate"):
        progress_records.check_progress({"approximate": {"loss": "low"}})
