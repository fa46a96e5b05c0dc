"""Keras' console output as progress records.

``data/console/*.log`` is what TensorFlow 2.21 with tf-keras 2.21 (``keras2``) and Keras 3.15
(``keras3``) wrote, standard output and error in one file, with PYTHONUNBUFFERED=1: 12 batches an
epoch, two epochs unless it is ``single``, then ``evaluate`` and ``predict`` with 12 batches.
``unknown`` trains on a generator, with ``interrupted`` warnings and a ModelCheckpoint write in
between, and in ``nested`` a callback evaluates and predicts 8 batches at the end of each epoch.
"""

from __future__ import annotations

import math
import random
import tracemalloc
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.host import console
from train.host.console import ConsoleParser

DATA = REPOSITORY / "tests/data/console"
LOGS = sorted(path.stem for path in DATA.glob("*.log"))
Record = dict[str, Any]


def log(name: str) -> bytes:
    """Return a recorded log."""
    return (DATA / f"{name}.log").read_bytes()


def parse(data: bytes | str) -> list[Record]:
    """Return the records of a whole log, all of which must come from the console."""
    records: list[Any] = [*ConsoleParser().feed(data if isinstance(data, bytes) else data.encode())]
    assert all(record.pop("source") == "console" for record in records)
    return records


def places(records: list[Record]) -> list[tuple[Any, ...]]:
    """Return where the run stands in each record: phase, epoch, and step or batch."""
    return [
        (r["phase"], r["epoch"], r.get("step") if r["phase"] == "training" else r["batch"])
        for r in records
    ]


def steps(epoch: int) -> list[tuple[Any, ...]]:
    """Return the places of an epoch: its begin, each step, and the last one with validation."""
    first = (epoch - 1) * 12
    begin = None if epoch == 1 else first
    numbers = [begin, *range(first + 1, first + 13), first + 12]
    return [("training", epoch, number) for number in numbers]


def both(epoch: int, batches: int, *phases: str) -> list[tuple[Any, ...]]:
    """Return the places of quick bars, of which Keras shows the first and the last batch."""
    return [(phase, epoch, batch) for phase in phases for batch in (1, batches)]


VALIDATED = {"accuracy": 0.5833, "val_loss": 0.6867, "val_accuracy": 0.5625}


@pytest.mark.parametrize("keras", ["keras2", "keras3"])
class TestRecordings:
    """What both Kerases print."""

    @pytest.mark.parametrize("case", ["plain", "interrupted", "nan"])
    def test_fit_evaluate_predict(self, keras: str, case: str) -> None:
        records = parse(log(f"{keras}-{case}-verbose1"))
        after = both(2, 12, "evaluating", "predicting")
        assert places(records) == [*steps(1), *steps(2), *after]
        assert [record.get("steps") for record in records] == [None] + [24] * 31
        assert {record["epochs"] for record in records} == {2}
        assert {(record["step"], record["batches"]) for record in records[-4:]} == {(24, 12)}
        if case == "nan":
            assert math.isnan(records[2]["loss"])
            assert records[2]["metrics"] == {"accuracy": 0.5}

    def test_values(self, keras: str) -> None:
        records = parse(log(f"{keras}-plain-verbose1"))
        seen = [(records[n].get("loss"), records[n].get("metrics")) for n in (1, 12, 13, -1)]
        assert seen == [
            (0.7649, {"accuracy": 0.375}),
            (0.6638, {"accuracy": 0.5833}),
            (0.6638, VALIDATED),
            (None, None),
        ]
        # Keras 2 prints whole seconds to go until the epoch's end.
        assert ("steps_per_s" in records[2]) == (keras == "keras3")
        assert 8 < records[13]["steps_per_s"] < 17  # each step slept 60 ms
        assert records[-3]["metrics"] == {"accuracy": 0.625}
        assert records[-3]["loss"] == pytest.approx(0.6438, abs=1e-4)

    def test_verbose_2(self, keras: str) -> None:
        records = parse(log(f"{keras}-plain-verbose2"))
        training = [("training", *place) for place in ((1, None), (1, 12), (2, 12), (2, 24))]
        assert places(records) == [*training, ("evaluating", 2, 12), ("predicting", 2, 12)]
        assert [record.get("steps") for record in records] == [None, 24, 24, 24, 24, 24]
        assert (records[1]["loss"], records[1]["metrics"]) == (0.6638, VALIDATED)
        assert 8 < records[1]["steps_per_s"] < 17
        assert records[4]["metrics"] == {"accuracy": 0.625}

    def test_unknown_number_of_batches(self, keras: str) -> None:
        records = parse(log(f"{keras}-unknown-verbose1"))
        assert places(records) == [*steps(1), *steps(2), *both(2, 12, "evaluating")]
        # It is known from the end of the first epoch on.
        assert [record.get("steps") for record in records] == [None] * 13 + [24] * 17
        assert [record.get("batches") for record in records[-2:]] == [None, 12]
        # The last bar of Keras 3 is followed by a warning, without a space.
        assert (records[12]["loss"], records[12]["metrics"]) == (0.664, {"accuracy": 0.5729})
        assert records[13]["metrics"]["val_accuracy"] == 0.6042

    def test_single_epoch(self, keras: str) -> None:
        records = parse(log(f"{keras}-single-verbose1"))
        assert places(records) == [*steps(1)[1:], *both(1, 12, "evaluating", "predicting")]
        assert {(record["steps"], record["epochs"]) for record in records} == {(12, 1)}
        records = parse(log(f"{keras}-single-verbose2"))
        phases = ("training", "evaluating", "predicting")
        assert places(records) == [(phase, 1, 12) for phase in phases]

    def test_a_callback_evaluates_and_predicts(self, keras: str) -> None:
        records = parse(log(f"{keras}-nested-verbose1"))
        expected = []
        for epoch in (1, 2):
            *batches, end = steps(epoch)
            expected += [*batches, *both(epoch, 8, "evaluating", "predicting"), end]
        assert places(records) == [*expected, *both(2, 12, "evaluating", "predicting")]
        assert records[17]["metrics"].keys() == VALIDATED.keys()

    @pytest.mark.parametrize("case", ["plain", "interrupted", "unknown", "single"])
    def test_other_line_ends_and_bars(self, keras: str, case: str) -> None:
        data = log(f"{keras}-{case}-verbose1")
        expected = parse(data)
        assert parse(data.replace(b"\b", b"").replace(b"\r", b"\n")) == expected
        assert parse(data.replace(b"\n", b"\r\n")) == expected
        for bar in (b"=", b"", b"\xe2\x94", b"\xff"):
            assert parse(data.replace("━".encode(), bar)) == expected


@pytest.mark.parametrize("name", LOGS)
def test_any_split_gives_the_same_records(name: str) -> None:
    data = log(name)
    whole = repr(parse(data))  # as text, in which nan equals nan
    randomness = random.Random(name)
    cuts = [list(range(0, len(data), size)) for size in (1, 2, 3, 7, 64, 1000)]
    cuts += [sorted(randomness.choices(range(len(data)), k=k)) for k in (1, 1, 1, 5, 50, 500)]
    for positions in cuts:
        parser = ConsoleParser()
        records = []
        for start, end in zip([0, *positions], [*positions, len(data)], strict=True):
            for record in parser.feed(data[start:end]):
                del record["source"]
                records.append(record)
        assert repr(records) == whole


@pytest.mark.parametrize("name", LOGS)
def test_bytes_that_are_no_text_do_no_harm(name: str) -> None:
    data = bytearray(log(name))
    randomness = random.Random(name)
    for _ in range(30):
        broken = bytearray(data)
        for _ in range(40):
            broken[randomness.randrange(len(broken))] = randomness.randrange(256)
        for record in parse(bytes(broken)):
            assert record["phase"] in ("training", "evaluating", "predicting")
        assert len(console.last_line(bytes(broken))) <= 200


@pytest.mark.parametrize(
    ("line", "loss", "metrics"),
    [
        ("ETA: 0s - loss: 1.2500e-042026-01-31 12:00:00.1: W tensorflow", 1.25e-4, None),
        # What follows other output is not Keras' own.
        ("ETA: 0s - loss: -0.69312026 - b: 0.5000 - x: inf", -0.6931, None),
        ("ETA: 0sWARNING - loss: 0.5000", None, None),
        (
            "3s - loss: inf - my f-score: 1234.5000 - b: -inf - 3s/step",
            math.inf,
            {"my f-score": 1234.5, "b": -math.inf},
        ),
    ],
)
def test_numbers_end_after_four_decimals(
    line: str, loss: float | None, metrics: dict[str, float] | None
) -> None:
    record = parse(f"Epoch 1/2\n\r 5/10 [====>.....] - {line}\n")[1]
    assert (record.get("loss"), record.get("metrics")) == (loss, metrics)


@pytest.mark.parametrize(
    ("bar", "rate"),
    [
        ("1/9 - 4s - 4s/step - loss: 0.5000", 0.25),
        ("1/9 - 4s - 250ms/step - loss: 0.5000", 4),
        ("1/9 - 4s - loss: 0.5000 - 4s/epoch - 125us/step", 8000),
        ("1/9 - 4s - loss: 0.5000 - 0s/step", None),
        ("1/9 - 4s - loss: 0.5000 - " + "9" * 5000 + "s/step", None),
        ("1/9 - 4s - loss: 0.5000 - 4s/epoch", None),
        ("1/9 - 4s - loss: 0.5000 - 4s/sample", None),
        ("100/1100 [==>......] - ETA: 9s - loss: 0.5000", None),
        ("100/1100 [==>......] - ETA: 10s - loss: 0.5000", 100),
        ("100/1100 [==>......] - ETA: 1:40 - loss: 0.5000", 10),
        ("100/1100 [==>......] - ETA: 2:46:40 - loss: 0.5000", 0.1),
        ("100/1100 ━━━━━━━ 1:40 20ms/step - loss: 0.5000", 50),
        ("100/1100 ━━━━━━━ 2:46:40 20ms/step - loss: 0.5000", 50),
    ],
)
def test_steps_per_second(bar: str, rate: float | None) -> None:
    (record,) = parse(f"\r{bar}\n")
    assert record.get("steps_per_s") == rate
    assert record["loss"] == 0.5


REST = " - 1s 50ms/step - loss: 0.5000"


def fit(epochs: int, batches: int, first: int = 1) -> str:
    """Return what ``fit`` of Keras 3 prints with ``verbose=2``."""
    text = ""
    for epoch in range(first, epochs + 1):
        text += f"Epoch {epoch}/{epochs}\n" if epochs > 1 else ""
        text += f"{batches}/{batches} - 1s - 1ms/step - loss: 0.5000\n"
    return text


@pytest.mark.parametrize(
    ("text", "done", "planned"),
    [
        (fit(2, 10) + fit(3, 5), [None, 10, 10, 20, 20, 25, 25, 30, 30, 35], 35),
        (fit(10, 5, first=9), [None, 45, 45, 50], 50),
        (fit(2, 5) + fit(4, 5, first=3), [None, 5, 5, 10, 10, 15, 15, 20], 20),
        # The length of an epoch is not known.
        (fit(2, 10) + f"Epoch 1/3\n\r      7/Unknown{REST}\n", [None, 10, 10, 20, 20, 27], None),
        (f"Epoch 3/4\n\r      7/Unknown{REST}\b\b\r8/8 [==]{REST}\n", [None, None, 24], 32),
    ],
)
def test_steps_go_on_over_calls_of_fit(
    text: str, done: list[int | None], planned: int | None
) -> None:
    records = parse(text)
    assert [record.get("step") for record in records] == done
    assert records[-1].get("steps") == planned


def bars(*batches: int, end: str = "\n", total: int = 4) -> str:
    """Return what a progress bar of Keras 3 prints with ``verbose=1``."""
    lines = [f"{n:2d}/{total} ━ 0s 9ms/step - loss: 0.{n}000" for n in batches]
    return "\r" + "\b\b\b\r".join(lines) + end


MORE = "\b\b\b" + bars(4, end=" - val_loss: 1.0000\n")


@pytest.mark.parametrize("end", ["", "\nEpoch 1: saving model to a.keras\n"])
def test_a_nested_bar_of_the_same_length(end: str) -> None:
    """Where a ModelCheckpoint writes newlines between the bars, too."""
    text = "Epoch 1/2\n" + bars(1, 4, end=end) + bars(1, 4, 4) + MORE
    nested = [("evaluating", 1, batch) for batch in (1, 4, 4)]
    training = [("training", 1, step) for step in (None, 1, 4, 4)]
    assert places(parse(text)) == [*training[:3], *nested, training[3]]


def test_evaluate_of_the_same_length_as_an_epoch() -> None:
    expected = [("training", 1, step) for step in (1, 4, 4)]
    expected += [("evaluating", 1, batch) for batch in (1, 3, 4, 4)]
    text = bars(1, 4, 4) + bars(1, 3, 4, 4)
    assert places(parse(text)) == expected
    assert places(parse(text.replace("\b", "").replace("\r", "\n"))) == expected
    assert places(parse(text.replace("\n", "\r\n"))) == expected


@pytest.mark.parametrize(("total", "batch"), [(4, 3), (9, 1)])
def test_training_goes_on_after_a_bar_that_was_cut_short(total: int, batch: int) -> None:
    text = "Epoch 1/2\n" + bars(1, end="") + bars(batch, end="", total=total)
    records = places(parse(text + "\b\b\b" + bars(2, 4)))
    assert records[2:] == [("evaluating", 1, batch), ("training", 1, 2), ("training", 1, 4)]


def test_the_next_epoch_begins_after_a_bar_that_was_cut_short() -> None:
    text = "Epoch 1/2\n" + bars(1, 4) + bars(1) + "Epoch 2/2\n" + bars(1, 4)
    records = places(parse(text.replace("\b", "").replace("\r", "\n")))
    training = [("training", 2, step) for step in (4, 5, 8)]
    assert records[3:] == [("evaluating", 1, 1), *training]


def test_single_epochs_with_validation_again_and_again() -> None:
    line = "12/12 - 1s - 1ms/step - loss: 0.5000 - val_loss: 0.4000\n"
    assert places(parse(line * 3)) == [("training", 1, step) for step in (12, 24, 36)]
    first, second = (f"{batch}/2 ━ 0s 9ms/step - loss: 0.5000" for batch in (1, 2))
    records = parse(f"\r{first}\b\b\r{second} - val_loss: 1.0000\n" * 2)
    assert places(records)[1:] == [("training", 1, 2), ("evaluating", 1, 1), ("training", 1, 4)]


def test_training_whose_first_bars_have_no_metrics() -> None:
    text = "\r1/2 [=>] - ETA: 0s\b\b\r2/2 [==] - 1s 9ms/step - loss: 0.5000\n"
    assert [r["phase"] for r in parse(text)] == ["predicting", "training"]
    assert places(parse("Epoch 1/2\n" + text))[1:] == [("training", 1, 1), ("training", 1, 2)]


def test_a_download_is_no_progress() -> None:
    text = (
        "Downloading data from https://example.com/mnist.npz\n"
        "\r       0/11490434 ━━━ 0s 0s/step\b\b\b\r11490434/11490434 ━━━ 0s 0us/step\n"
    )
    assert parse(text) == []
    assert places(parse(text + fit(2, 10))) == places(parse(fit(2, 10)))
    assert places(parse(text.splitlines()[0] + "\n" + fit(2, 10))) == places(parse(fit(2, 10)))
    assert places(parse(text + "\r3/3 ━━━ 0s 1ms/step\n" + fit(1, 5))[1:]) == [("training", 1, 5)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "3/10 files",
        "2026/01/31 12:00",
        "12/12",
        "1/0x5 - 1s",
        "Epoch 1/5 loss 0.5000",
        "Epoch 0/5",
        "Epoch 1/" + "5" * 5000,
        "1/2 - " + "9" * 5000 + "s - loss: 0.5000",
        "9" * 5000 + "/2 - 1s - loss: 0.5000",
        "Epoch 1: val_loss improved from inf to 0.5000, saving model",
        "step 5/10 - 1s - loss: 0.5000",
        "5 / 10 - 1s - loss: 0.5000",
    ],
)
def test_other_lines_are_no_records(line: str) -> None:
    assert parse(f"{line}\n\r{line}\r\n") == []


def test_a_bar_is_understood_when_something_follows() -> None:
    parser = ConsoleParser()
    assert parser.feed(b"\r1/9 - 1s - loss: 0.5000 - acc") == []
    assert parser.feed(b"uracy: 0.2500") == []
    (record,) = parser.feed(b"\b")
    assert record["metrics"] == {"accuracy": 0.25}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", ""),
        (b"one\ntwo\n", "two"),
        (b"one\n  \n\r\n\x1b[0m\n", "one"),
        (b"one\ntw", "tw"),
        (b"one\b\b\n", "one"),
        (b"one\n\x1b[1m", "one"),
        (b" 10%|#   \r \x1b[32m20%\x1b[0m|##  \r", "20%|##"),
        (b"\x1b]0;title\x07\x1b[1;31mred\x1b[0m\ttab\x00\n", "red\ttab"),
        (b"caf\xc3\xa9 \xff\n", "caf\u00e9 \ufffd"),
        (b"x" * 5000 + b"\n", "x" * 200),
    ],
)
def test_the_last_line(data: bytes, line: str) -> None:
    assert console.last_line(data) == line
    assert parse(data) == []


def test_memory_is_bounded() -> None:
    parser = ConsoleParser()
    pieces = [b"x" * 65536, log("keras3-plain-verbose1"), b"\b" * 65536, b"y\n" * 100]
    tracemalloc.start()
    try:
        held = []
        for piece in pieces * 3:
            for _ in range(4):
                parser.feed(piece)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held) < 100_000
