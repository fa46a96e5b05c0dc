"""Keras' console output as progress records.

``data/console/*.log`` are the outputs, standard output and error in one file, of TensorFlow 2.21
with tf-keras 2.21 (``keras2``) and Keras 3.15 (``keras3``), with PYTHONUNBUFFERED=1. They have 12
batches per epoch and two epochs (``single`` has one), then ``evaluate`` and ``predict`` with 12
batches. In ``unknown``, the data is a generator. In ``interrupted``, warnings and a ModelCheckpoint
write in between. In ``nested``, a callback evaluates and predicts 8 batches after each epoch.
"""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.host import console
from train.host.console import ConsoleParser
from train.host.progress_records import is_whole

DATA = REPOSITORY / "tests/data/console"
LOGS = sorted(path.stem for path in DATA.glob("*.log"))
Record = dict[str, Any]


def log(name: str) -> bytes:
    return (DATA / f"{name}.log").read_bytes()


def parse(*pieces: bytes | str) -> list[Record]:
    """Return the records of a whole log, all of which must come from the console."""
    parser = ConsoleParser()
    records: list[Any] = []
    for piece in pieces:
        records += parser.feed(piece if isinstance(piece, bytes) else piece.encode())
    assert all(record.pop("source") == "console" for record in records)
    return records


def places(records: list[Record]) -> list[str]:
    """Return the position of the run in each record, such as ``t2:15``: training, epoch 2, step 15.

    Evaluating (``e``) and predicting (``p``) have the batch instead of the step.
    """
    found = []
    for record in records:
        number = record.get("step" if record["phase"] == "training" else "batch", "")
        found.append(f"{record['phase'][0]}{record.get('epoch', '')}:{number}")
    return found


def steps(epoch: int) -> list[str]:
    """Return the places of an epoch: its start, each step, and the last one with validation."""
    first = (epoch - 1) * 12
    numbers = [first or "", *range(first + 1, first + 13), first + 12]
    return [f"t{epoch}:{number}" for number in numbers]


def both(epoch: int, batches: int, phases: str = "ep") -> list[str]:
    """Return the places of quick bars, of which Keras shows the first and the last batch."""
    return [f"{phase}{epoch}:{batch}" for phase in phases for batch in (1, batches)]


VALIDATED = {"accuracy": 0.5833, "val_loss": 0.6867, "val_accuracy": 0.5625}


@pytest.mark.parametrize("keras", ["keras2", "keras3"])
class TestRecordings:
    @pytest.mark.parametrize("case", ["plain", "interrupted", "nan"])
    def test_fit_evaluate_predict(self, keras: str, case: str) -> None:
        records = parse(log(f"{keras}-{case}-verbose1"))
        assert places(records) == [*steps(1), *steps(2), *both(2, 12)]
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
        assert places(records) == ["t1:", "t1:12", "t2:12", "t2:24", "e2:12", "p2:12"]
        assert [record.get("steps") for record in records] == [None, 24, 24, 24, 24, 24]
        assert (records[1]["loss"], records[1]["metrics"]) == (0.6638, VALIDATED)
        assert 8 < records[1]["steps_per_s"] < 17
        assert records[4]["metrics"] == {"accuracy": 0.625}

    def test_unknown_number_of_batches(self, keras: str) -> None:
        records = parse(log(f"{keras}-unknown-verbose1"))
        assert places(records) == [*steps(1), *steps(2), *both(2, 12, "e")]
        # The length is known from the end of the first epoch on.
        assert [record.get("steps") for record in records] == [None] * 13 + [24] * 17
        assert [record.get("batches") for record in records[-2:]] == [None, 12]
        # The last bar of Keras 3 is followed by a warning, without a space.
        assert (records[12]["loss"], records[12]["metrics"]) == (0.664, {"accuracy": 0.5729})
        assert records[13]["metrics"]["val_accuracy"] == 0.6042

    def test_single_epoch(self, keras: str) -> None:
        records = parse(log(f"{keras}-single-verbose1"))
        assert places(records) == [*steps(1)[1:], *both(1, 12)]
        assert {(record["steps"], record["epochs"]) for record in records} == {(12, 1)}
        assert places(parse(log(f"{keras}-single-verbose2"))) == ["t1:12", "e1:12", "p1:12"]

    def test_a_callback_evaluates_and_predicts(self, keras: str) -> None:
        records = parse(log(f"{keras}-nested-verbose1"))
        expected = []
        for epoch in (1, 2):
            *batches, end = steps(epoch)
            expected += [*batches, *both(epoch, 8), end]
        assert places(records) == [*expected, *both(2, 12)]
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
        ends = zip([0, *positions], [*positions, len(data)], strict=True)
        assert repr(parse(*(data[start:end] for start, end in ends))) == whole


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
        # Numbers after other output are not from Keras.
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
        ("100/1100 ??????? 2:46:40 20ms/step - loss: 0.5000", 50),
        ("  100/Unknown 3s 20ms/step - loss: 0.5000", 50),
    ],
)
def test_steps_per_second(bar: str, rate: float | None) -> None:
    (record,) = parse(f"\r{bar}\n")
    assert record.get("steps_per_s") == rate
    assert record["loss"] == 0.5


REST = " - 1s 50ms/step - loss: 0.5000"


def fit(epochs: int, batches: int, first: int = 1) -> str:
    """Return the output of ``fit`` of Keras 3 with ``verbose=2``."""
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
def test_steps_over_calls_of_fit(text: str, done: list[int | None], planned: int | None) -> None:
    records = parse(text)
    assert [record.get("step") for record in records] == done
    assert records[-1].get("steps") == planned


def bars(*batches: int, end: str = "\n", total: int = 4) -> str:
    """Return the output of a progress bar of Keras 3 with ``verbose=1``."""
    lines = [f"{n:2d}/{total} ━ 0s 9ms/step - loss: 0.{n}000" for n in batches]
    return "\r" + "\b\b\b\r".join(lines) + end


def flat(text: str) -> str:
    """Return a text as if each update of a bar were a separate line, without backspaces."""
    return text.replace("\b", "").replace("\r", "\n")


EPOCH, SAVED = "Epoch 1/2\n", "\nEpoch 1: saving model to a.keras\n"
NESTED = bars(1, 4, 4) + "\b\b\b" + bars(4, end=" - val_loss: 1.0000\n")
CUT_SHORT = EPOCH + bars(1, end="") + bars(3, end="\b\b\b")
EQUAL = bars(1, 4, 4) + bars(1, 3, 4, 4)
SINGLE = "12/12 - 1s - 1ms/step - loss: 0.5000 - val_loss: 0.4000\n"
ONE, TWO = (f"{batch}/2 ━ 0s 9ms/step - loss: 0.5000" for batch in (1, 2))
NO_METRICS = "\r1/2 [=>] - ETA: 0s\b\b\r2/2 [==] - 1s 9ms/step - loss: 0.5000\n"
URL = "Downloading data from https://example.com/mnist.npz\n"
LOADED = f"{URL}\r       0/11490434 ━━━ 0s 0s/step\b\b\b\r11490434/11490434 ━━━ 0s 0us/step\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A nested bar of the same length, also with output of a ModelCheckpoint in between.
        (EPOCH + bars(1, 4, end="") + NESTED, "t1: t1:1 t1:4 e1:1 e1:4 e1:4 t1:4"),
        (EPOCH + bars(1, 4, end=SAVED) + NESTED, "t1: t1:1 t1:4 e1:1 e1:4 e1:4 t1:4"),
        # ``evaluate`` of the same length as an epoch.
        (EQUAL, "t1:1 t1:4 t1:4 e1:1 e1:3 e1:4 e1:4"),
        (flat(EQUAL), "t1:1 t1:4 t1:4 e1:1 e1:3 e1:4 e1:4"),
        (EQUAL.replace("\n", "\r\n"), "t1:1 t1:4 t1:4 e1:1 e1:3 e1:4 e1:4"),
        # A bar that was cut off: the training continues, and the next epoch begins.
        (CUT_SHORT + bars(2, 4), "t1: t1:1 e1:3 t1:2 t1:4"),
        (CUT_SHORT.replace("3/4", "1/9") + bars(2, 4), "t1: t1:1 e1:1 t1:2 t1:4"),
        (
            flat(EPOCH + bars(1, 4) + bars(1) + "Epoch 2/2\n" + bars(1, 4)),
            "t1: t1:1 t1:4 e1:1 t2:4 t2:5 t2:8",
        ),
        # Several single epochs with validation.
        (SINGLE * 3, "t1:12 t1:24 t1:36"),
        (f"\r{ONE}\b\b\r{TWO} - val_loss: 1.0000\n" * 2, "t1:1 t1:2 e1:1 t1:4"),
        # Training whose first bars have no metrics.
        (NO_METRICS, "p:1 t1:2"),
        (EPOCH + NO_METRICS, "t1: t1:1 t1:2"),
        # A download is not progress.
        (LOADED, ""),
        (LOADED + fit(2, 10), "t1: t1:10 t2:10 t2:20"),
        (URL + fit(2, 10), "t1: t1:10 t2:10 t2:20"),
        (LOADED + "\r3/3 ━━━ 0s 1ms/step\n" + fit(1, 5), "p:3 t1:5"),
    ],
)
def test_phases(text: str, expected: str) -> None:
    assert places(parse(text)) == expected.split()


FIT, VALIDATING = "9ms/step - loss: 0.5000", "9ms/step - loss: 0.5000 - val_loss: 0.4000"
TEST, SLOW_TEST, PREDICT = "2ms/step - loss: 0.5000", "8ms/step - loss: 0.5000", "2ms/step"
FIRST_FIT = "40ms/step - loss: 0.5000"  # fills a cache


def calls(*ends: str, verbose: int, keras: int = 3) -> str:
    """Return the output of calls with four steps, or with two for those that begin with ``2``."""
    text = ""
    for end in ends:
        total, end = (2, end[2:]) if end.startswith("2 ") else (4, end)
        within = end.partition(" - val_")[0]
        if verbose == 2:
            text += f"{total}/{total} - 0s - {end}\n"
        elif keras == 3:
            text += f"\r1/{total} ━━━━━ 0s {within}\b\b\r{total}/{total} ━━━━━ 0s {end}\n"
        else:
            within = within.partition("/step")[2]
            text += f"\r1/{total} [=>.] - ETA: 0s{within}\b\b"
            text += f"\r{total}/{total} [===] - ETA: 0s{within}\b\b"
            text += f"\r{total}/{total} [===] - 0s {end}\n"
    return text


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # The second bar may be an ``evaluate``; the third shows what it was.
        ([FIT] * 5, "t:4 e:4 t:12 t:16 t:20"),
        ([FIRST_FIT, *[FIT] * 4], "t:4 e:4 t:12 t:16 t:20"),
        ([FIT, TEST, PREDICT], "t:4 e:4 p:4"),
        ([FIT, TEST] * 3, "t:4 e:4 t:8 e:4 t:12 e:4"),
        ([FIT, "2 " + TEST] * 3, "t:4 e:2 t:8 e:2 t:12 e:2"),
        ([FIT, PREDICT] * 3, "t:4 p:4 t:8 p:4 t:12 p:4"),
        ([FIT, PREDICT, FIT, FIT, FIT, PREDICT, FIT], "t:4 p:4 t:8 e:4 t:16 p:4 t:20"),
        ([FIT, TEST, "2 " + TEST] * 2, "t:4 e:4 e:2 t:8 e:4 e:2"),
        ([FIT, FIT, FIT, "2 " + TEST, FIT], "t:4 e:4 t:12 e:2 t:16"),
        ([FIT, "2 " + TEST, "2 " + TEST], "t:4 e:2 e:2"),
        # A documented mistake: evaluate is as slow as fit.
        ([FIT, SLOW_TEST] * 2, "t:4 e:4 t:12 t:16"),
        # Other metrics or another length.
        ([FIT, FIT + " - auc: 0.5000"] * 2, "t:4 e:4 t:8 e:4"),
        (["2 " + FIT, FIT, FIT], "t:2 e:4 e:4"),
        # The metrics of the validation tell a fit from an evaluate.
        ([VALIDATING] * 4, "t:4 t:8 t:12 t:16"),
        ([VALIDATING, SLOW_TEST] * 3, "t:4 e:4 t:8 e:4 t:12 e:4"),
        # A learning rate that a callback adds at the end.
        ([FIT + " - lr: 0.1000"] * 3, "t:4 e:4 t:12"),
    ],
)
def test_calls_of_fit_for_one_epoch_each(ends: list[str], expected: str) -> None:
    for verbose, keras in ((2, 3), (1, 3), (1, 2)):
        records = parse(calls(*ends, verbose=verbose, keras=keras))
        places = []
        for record in records:
            if (
                record["batch"] == record["batches"] and "steps_per_s" in record
            ):  # at the end of a bar
                number = record["step" if record["phase"] == "training" else "batch"]
                places.append(f"{record['phase'][0]}:{number}")
        assert places == expected.split(), (verbose, keras)
        assert {record["epochs"] for record in records} == {1}
        assert records[-1]["step"] <= records[-1]["steps"]


def test_the_length_of_a_generator_distinguishes_the_calls() -> None:
    def of_length(total: int) -> str:
        text = f"\r      1/Unknown 0s {FIT}\b\b\r      2/Unknown 0s {FIT}\b\b"
        return f"{text}\r{total}/{total} ━━━━━ 0s {FIT}\n"

    def steps_of(*totals: int) -> list[Any]:
        return [
            (record["phase"][0], record.get("step"))
            for record in parse("".join(map(of_length, totals)))
            if record.get("batch") == record.get("batches")
        ]

    assert steps_of(5, 5, 5, 5) == [("t", 5), ("e", 5), ("t", 15), ("t", 20)]
    assert steps_of(5, 3, 5, 3) == [("t", 5), ("e", 5), ("t", 10), ("e", 10)]


def test_calls_of_fit_with_and_without_several_epochs() -> None:
    """After an ``Epoch`` line, a bar without such a line is not known to be training."""
    one = calls(FIT, verbose=2)
    assert places(parse(fit(2, 4) + one + one)) == ["t1:", "t1:4", "t2:4", "t2:8", "e2:4", "e2:4"]
    assert places(parse(one + fit(2, 4) + one))[1:] == ["t1:4", "t1:8", "t2:8", "t2:12", "e2:4"]


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
        # A date and a time of day.
        "05/27 10:15:15 - loss: 0.4123",
        "05/27 10:14:15 AM Epoch 1/5",
        "05/27 9:15 - loss: 0.4123",
        "05/27 - 10:15:15 - loss: 0.4123",
        "05/27 | 10:15:15 | loss: 0.4123",
        "05/27 -- 10:15:15,123 - loss: 0.4123",
        "05/27 [10:15:15] - loss: 0.4123",
        "05/27 ===== 10:15:15 PM - loss: 0.4123",
        "05/27 ?????? 10:15 - loss: 0.4123",
        "05/27 ETA: 10:15 pm - loss: 0.4123",
        "05/27 ETA: 10:15:15,123 - loss: 0.4123",
        "5/27 10s - loss: 0.4123",
    ],
)
def test_other_lines_are_no_records(line: str) -> None:
    assert parse(f"{line}\n\r{line}\r\n") == []


def test_a_bar_is_understood_when_something_follows() -> None:
    parser = ConsoleParser()
    assert parser.feed(b"\r1/9 - 1s - loss: 0.5000 - acc") + parser.feed(b"uracy: 0.2500") == []
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


def replicas(name: str) -> tuple[bytes, dict[str, list[float]]]:
    """Return a log of ``data/console/replicas`` without its last lines, and Keras' own values.

    Worker 0 of one, two or three printed them with TensorFlow 2.21 and tf-keras 2.21: two epochs,
    each with validation, then ``evaluate``. A callback adds ``lr`` at the end of an epoch.
    In ``train-step``, of two workers, a custom ``train_step`` returns tensors; in
    ``reduction-first`` the model's ``distribute_reduction_method`` is ``first``; in ``unknown``
    the data set does not know its length.
    """
    data = (DATA / "replicas" / f"{name}.log").read_bytes()
    printed, _, rest = data.partition(b"\nHISTORY ")
    history, _, evaluated = rest.partition(b"\n")
    return printed + evaluated.partition(b"\nEVALUATE ")[0], json.loads(history)


def parse_replicas(data: bytes) -> list[Any]:
    """Return the records of a log whose values may be sums over replicas."""
    records: list[Any] = []
    parser = ConsoleParser(may_sum=True)
    for start in range(0, len(data), 100):
        records += parser.feed(data[start : start + 100])
    return records


def values_of(record: Record) -> dict[str, float]:
    loss = {"loss": record["loss"]} if "loss" in record else {}
    return {**loss, **record.get("metrics", {})}


WORKERS = ["one-worker", "two-workers", "three-workers"]


class TestReplicas:
    @pytest.mark.parametrize("name", [*WORKERS, "unknown"])
    def test_values_are_those_of_whole_epochs(self, name: str) -> None:
        data, history = replicas(name)
        ends = [record for record in parse_replicas(data) if is_whole(record)]
        ends = [end for end in ends if end["phase"] == "training" and "val_loss" in values_of(end)]
        found = {key: [values_of(record)[key] for record in ends] for key in values_of(ends[0])}
        assert found.keys() == history.keys()
        for key, expected in history.items():
            assert found[key] == pytest.approx(expected, abs=0.5e-4 + 1e-7), key

    @pytest.mark.parametrize("name", [*WORKERS[1:], "unknown"])
    def test_sums_over_workers_are_divided_once_the_scale_is_known(self, name: str) -> None:
        alone = parse_replicas(replicas("one-worker")[0])
        within = [record for record in parse_replicas(replicas(name)[0]) if "approximate" in record]
        assert {record["epoch"] for record in within} == {2}
        assert all("loss" not in record and "metrics" not in record for record in within)
        true = {r["step"]: values_of(r) for r in alone if r["phase"] == "training" and "loss" in r}
        for record in within if name != "unknown" else []:
            expected = true[record["step"]]
            del record["approximate"]["half"]  # weighs the workers of an uneven step equally
            for key, value in record["approximate"].items():
                assert value == pytest.approx(expected[key], rel=1e-3), (record["step"], key)
        assert max(r["approximate"]["accuracy"] for r in within) <= 1.0

    @pytest.mark.parametrize("name", [*WORKERS[1:], "train-step", "reduction-first", "unknown"])
    def test_nothing_is_shown_within_the_first_epoch(self, name: str) -> None:
        records = parse_replicas(replicas(name)[0])
        first = [r for r in records if r["epoch"] == 1 and not (is_whole(r) and values_of(r))]
        assert len(first) > 4
        assert all(not values_of(record) and "approximate" not in record for record in first)
        batches = [record["batch"] for record in first if "batch" in record]
        assert batches == list(range(1, len(batches) + 1))

    def test_the_scale_of_evaluate_is_not_that_of_fit(self) -> None:
        records = parse_replicas(replicas("two-workers")[0])
        evaluating = [record for record in records if record["phase"] == "evaluating"]
        assert [bool(values_of(record)) for record in evaluating] == [False, True]
        assert all("approximate" not in record for record in evaluating)

    def test_values_of_a_custom_train_step_keep_their_scale(self) -> None:
        records = parse_replicas(replicas("train-step")[0])
        within = [record for record in records if "approximate" in record]
        # Keras averages the other value, which the ranks sum up, over the steps.
        assert [record["approximate"] for record in within] == [
            {"loss": loss} for loss in (0.7531, 0.7814, 0.7775, 0.8939)
        ]

    def test_what_proves_to_be_true_is_kept_as_it_is(self) -> None:
        records = parse_replicas(replicas("reduction-first")[0])
        losses = [r["loss"] for r in records if r["epoch"] == 2 and r.get("batches") == 4]
        assert losses == [0.7531, 0.7672, 0.7707, 0.8015, 0.8015]

    @pytest.mark.parametrize("name", ["one-worker", "reduction-first"])
    def test_all_of_one_replica_is_shown(self, name: str) -> None:
        data = replicas(name)[0]
        records = parse(data)
        assert all(values_of(record) for record in records if "batch" in record)

    def test_a_scale_that_is_wrong_once_is_forgotten(self) -> None:
        def shown(*epochs: tuple[str, str]) -> list[float | None]:
            """Return the value shown within each epoch, from Keras' values there and at its end."""
            text = ""
            for number, (within, end) in enumerate(epochs, 1):
                text += f"Epoch {number}/9\n\r2/2 [====] - ETA: 0s - loss: {within}\b\b"
                text += f"\r2/2 [====] - 1s 9ms/step - loss: {end}\n"
            records = [r for r in parse_replicas(text.encode()) if "batch" in r]
            return [record.get("approximate", {}).get("loss") for record in records[::2]]

        twice, thrice = ("1.0000", "0.5000"), ("0.9000", "0.3000")
        assert shown(twice, thrice, thrice) == [None, 0.45, 0.3]
        # Neither 2 nor another factor; too few digits; a loss that is not finite.
        assert shown(twice, ("1.0000", "0.7000"), twice) == [None, 0.5, None]
        assert shown(("0.0042", "0.0001"), twice) == [None, None]
        assert shown(twice, ("0.8000", "nan"), ("nan", "nan"))[:2] == [None, 0.4]
        assert math.isnan(shown(("nan", "nan"))[0] or 0.0)


@pytest.mark.parametrize(
    ("workers", "task", "gpus", "many"),
    [
        (3, "worker", [], True),
        (2, "worker", ["0"], True),
        (2, "evaluator", ["0"], False),
        (1, "worker", ["0"], False),
        (1, "worker", ["0", "1"], True),
        (1, "worker", None, True),
    ],
)
def test_when_values_may_be_sums(
    workers: int,
    task: str,
    gpus: list[str] | None,
    many: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr("train.host.gpus.DEV", str(tmp_path))
    cluster = {"worker": [f"h{n}:1" for n in range(workers)]}
    config = {"cluster": cluster, "task": {"type": task, "index": 0}}
    assert console.may_sum_replicas(config, gpus) is many


def test_without_tf_config_and_gpus_nothing_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.host.gpus.DEV", str(tmp_path))
    assert not console.may_sum_replicas(None, None)


def test_the_last_line_is_one_of_the_script() -> None:
    log = (DATA / "replicas/three-workers.log").read_bytes()
    start, _, _ = log.partition(b"replicas 3")
    assert console.last_line(start) == ""
    barrier = b"I0000 00:00:17.1 9 c.cc:5] Example stragglers:\n/job:worker/replica:0/task:2\n"
    error = b"E0000 00:00:17.1 9 agent.cc:5] Coordination service is lost\n"
    assert console.last_line(b"loads the data\n" + barrier + error) == "loads the data"
    assert console.last_line(b"Epoch 1/2\n\r3/9 [=>..] - ETA: 1s - accuracy: 1.5030") == "Epoch 1/2"
    done = b"Epoch 1/2\n\r9/9 [===] - 1s 9ms/step - accuracy: 0.5030\n"
    assert console.last_line(done).endswith("accuracy: 0.5030")
