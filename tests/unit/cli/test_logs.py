"""The output of ranks as the display prints it."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest

from train.cli.logs import LogPrinter, colour_of
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
    printer.finish()
    assert (tmp_path / "worker-0.log.1").exists()
    assert stream.getvalue() == "".join(f"worker-0 | {line}" for line in lines)


def test_neighbours_differ_in_colour() -> None:
    tasks = ["chief-0", *(f"worker-{index}" for index in range(30))]
    for task, following in itertools.pairwise(tasks):
        assert colour_of(task) != colour_of(following)
