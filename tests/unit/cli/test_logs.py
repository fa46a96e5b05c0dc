"""The display of logs: limits, and colors."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import pytest

from train.cli.logs import LEFT_OUT, LogPrinter, color_of
from train.gang.watch.fetched import FetchedFile


@pytest.mark.parametrize("pause", [1, 3])
def test_a_log_is_printed_on_where_it_reaches_its_limit(tmp_path: Path, pause: int) -> None:
    stream = io.StringIO()
    printer = LogPrinter(tmp_path, None, stream)
    file = FetchedFile(tmp_path / "worker-0.log", 200)
    lines = [f"line {number} {'x' * 20}\n" for number in range(20)]
    for number, line in enumerate(lines):
        file.append(line.encode(), file.offset + len(line))
        if number % pause == 0:
            printer.pump()
    printer.pump(last=True)
    assert (tmp_path / "worker-0.log.1").exists()
    assert stream.getvalue() == "".join(f"worker-0 | {line}" for line in lines)


def test_lines_that_were_replaced_before_they_were_printed_are_missed(tmp_path: Path) -> None:
    stream = io.StringIO()
    printer = LogPrinter(tmp_path, "worker-0", stream)
    file = FetchedFile(tmp_path / "worker-0.log", 200)
    lines = [f"line {number} {'x' * 20}\n" for number in range(20)]
    for line in lines[:2]:
        file.append(line.encode(), file.offset + len(line))
    printer.pump()
    for line in lines[2:]:
        file.append(line.encode(), file.offset + len(line))
    printer.pump(last=True)
    shown = stream.getvalue().splitlines(keepends=True)
    # The file that is open is read to its end.
    assert shown[:4] == [*lines[:3], f"{LEFT_OUT}\n"]
    assert shown[4:] == lines[-len(shown[4:]) :]


def test_each_rank_has_a_color_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for index in (0, 1):
        (tmp_path / f"worker-{index}.log").write_text("last\n")

    def printed() -> str:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        LogPrinter(tmp_path, None, stream).pump(last=True)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    colors = re.findall(r"\x1b\[(\d+)m(worker-\d) \| \x1b\[0mlast", printed())
    assert [task for _, task in colors] == ["worker-0", "worker-1"]
    assert colors[0][0] != colors[1][0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed().splitlines() == ["worker-0 | last", "worker-1 | last"]


def test_neighbors_differ_in_color() -> None:
    tasks = ["chief-0", *(f"worker-{index}" for index in range(30))]
    for task, following in itertools.pairwise(tasks):
        assert color_of(task) != color_of(following)
