"""A real gang in which one rank is slow."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from tests.support.training_ranks import Rank, Start, start_gang
from train.gang.watch.stragglers import PaceFinding, Stragglers
from train.host import load


def watched(ranks: list[Rank], stop: float = 0.0) -> PaceFinding:
    """Return the first finding on two ranks that train, while the second is stopped repeatedly.

    Args:
        stop: seconds of each stop; the next one follows after a third of that time.
    """
    watch = Stragglers(dict.fromkeys(["worker-0", "worker-1"], "here"), window=4.0)
    for rank in ranks:
        rank.wait_for("training")
    seen = [0, 0]
    limit = time.monotonic() + 90
    while time.monotonic() < limit:
        if stop:
            ranks[1].process.send_signal(signal.SIGSTOP)
            time.sleep(stop)
        for index, rank in enumerate(ranks):
            assert rank.process.poll() is None, rank.said()
            reading: Any = load.facts(rank.process.pid)
            watch.add_reading(f"worker-{index}", reading)
            records: Any = rank.records()
            for record in records[seen[index] :]:
                watch.add_record(f"worker-{index}", record)
            seen[index] = len(records)
        if stop:
            ranks[1].process.send_signal(signal.SIGCONT)
        found = watch.finding()
        if found is not None and found.cause != "network":
            return found
        time.sleep(stop / 3 or 0.5)
    raise AssertionError("nobody was named")


@pytest.mark.soak
@pytest.mark.tensorflow
def test_a_rank_that_is_stopped_again_and_again_is_named(start: Start, tmp_path: Path) -> None:
    ranks = start_gang(start, tmp_path, "--epochs=100000", "--evaluate-every=0")
    found = watched(ranks, stop=0.15)
    assert (found.task, found.cause) == ("worker-1", "compute"), found
    assert any("it was stopped by a signal in " in text for text in found.evidence)


@pytest.mark.tensorflow
def test_a_rank_with_slow_examples_is_named(start: Start, tmp_path: Path) -> None:
    data = REPOSITORY / "tests/data/scripts/slow_data.py"
    ranks = start_gang(
        start,
        tmp_path,
        *("--epochs=100000", "--evaluate-every=0", "--batch-size=20", f"--data={data}"),
        "--steps-per-execution=1",
        variables={0: {"SLOW_WHILE": "/nowhere"}, 1: {"SLOW_WHILE": "/"}},
    )
    found = watched(ranks)
    assert (found.task, found.cause) == ("worker-1", "input"), found
    assert found.factor is not None
    assert found.factor > 1.5
