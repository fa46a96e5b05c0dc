"""Bars of tqdm 4.70 and Lightning 2.6 as progress records."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import pytest

from train.host import pace
from train.host.console import ConsoleParser
from train.host.loop_bars import LoopBars, is_vague
from train.host.progress_records import NOT_FINITE, check_progress, is_whole

Record = dict[str, Any]
TRAINING = {"source": "console", "phase": "training"}


def bar(label: str, done: int, total: int, fields: str = "", speed: str = "3.91it/s") -> str:
    percent, width = 100 * done // total, 10 * done // total
    drawn = "█" * width + " " * (10 - width)
    return f"{label}{percent:3}%|{drawn}| {done}/{total} [00:01<00:02, {speed}{fields}]"


def parse(*lines: str) -> list[Record | None]:
    bars = LoopBars()
    return [bars.line(line) for line in lines]  # type: ignore[misc]


def test_bars_with_their_number_of_epochs() -> None:
    found = parse(
        bar("Epoch 1/3: ", 4, 10, ", loss=0.52, acc=0.81"),
        bar("Epoch 3/3: ", 10, 10, ", loss=0.11, acc=0.97"),
    )
    assert found == [
        {
            **TRAINING,
            **{"epoch": 1, "epochs": 3, "step": 4, "steps": 30, "steps_per_s": 3.91},
            **{"loss": 0.52, "metrics": {"acc": 0.81}},
        },
        {
            **TRAINING,
            **{"epoch": 3, "epochs": 3, "step": 30, "steps": 30, "steps_per_s": 3.91},
            **{"loss": 0.11, "metrics": {"acc": 0.97}},
        },
    ]


def test_lightning_counts_epochs_from_0() -> None:
    fields = ", v_num=0, train_loss=0.31, val_loss=0.42"
    _, found = parse(bar("Epoch 0: ", 40, 40), bar("Epoch 1: ", 10, 40, fields))
    assert found == {
        **TRAINING,
        **{"epoch": 2, "step": 50, "steps_per_s": 3.91},
        **{"loss": 0.31, "metrics": {"val_loss": 0.42}},
    }


@pytest.mark.parametrize(
    ("label", "epoch", "epochs"),
    [
        ("Epoch 0/2: ", 1, 2),
        ("epoch: 2/5 ", 2, 5),
        ("Epoch [4 / 5]: ", 4, 5),
        ("Training epoch 1: ", 1, None),
        ("Epoch 7: ", 8, None),
    ],
)
def test_ways_to_write_an_epoch(label: str, epoch: int, epochs: int | None) -> None:
    (found,) = parse(bar(label, 1, 10))
    assert found is not None
    assert (found["epoch"], found.get("epochs")) == (epoch, epochs)


def test_steps_of_bars_without_epochs_are_added_up() -> None:
    lines = [bar("train: ", done, 4) for _ in range(2) for done in (0, 2, 4, 4)]
    found = parse(*lines)
    assert [record["step"] for record in found if record] == [0, 2, 4, 4, 4, 6, 8, 8]
    assert not [record for record in found if record and "epoch" in record]


@pytest.mark.parametrize(
    "label",
    [
        *("train", "Training: ", "TRAIN ", "Training...: ", "[train] ", "train_step: ", "Trainer "),
        *(
            "pretraining ",
            "Training (fine-tuning): ",
            "Training model: ",
            "Deep learning training ",
        ),
    ],
)
def test_a_word_that_is_training(label: str) -> None:
    (found,) = parse(bar(label, 3, 4))
    assert found is not None
    assert found["step"] == 3


@pytest.mark.parametrize("fields", [", loss=0.5", ", train_loss=0.5"])
def test_a_bar_with_a_loss_is_training_whatever_it_counts(fields: str) -> None:
    (found,) = parse(bar("Processing images: ", 3, 4, fields, speed="20.0img/s"))
    assert found is not None
    assert found["loss"] == 0.5


@pytest.mark.parametrize(
    ("label", "fields", "vague"),
    [("train ", "", True), ("train ", ", loss=0.5", False), ("Epoch 1: ", "", False)],
)
def test_a_word_alone_is_vague(label: str, fields: str, vague: bool) -> None:
    (found,) = parse(bar(label, 3, 4, fields))
    assert found is not None
    assert is_vague(cast(Any, found)) is vague


@pytest.mark.parametrize(
    ("record", "vague"),
    [
        ({"step": 3}, False),  # of the script itself
        ({"source": "console", "phase": "predicting", "batch": 3}, False),
        ({"source": "console", "phase": "training", "epoch": 1, "epochs": 3}, False),
    ],
)
def test_other_records_are_not_vague(record: Any, vague: bool) -> None:
    assert is_vague(record) is vague


def test_a_bar_with_a_loss_is_training() -> None:
    (found,) = parse(bar("", 3, 4, ", loss=nan"))
    assert found is not None
    assert found["step"] == 3


@pytest.mark.parametrize(
    ("fields", "loss", "metrics"),
    [
        (", loss=inf", math.inf, None),
        (", train_loss=-inf, acc=inf, v_num=1e999", -math.inf, {"acc": math.inf}),
        (", loss=1e999", math.inf, None),
        (", loss=0.5, perplexity=1e305, state=warm", 0.5, None),  # beyond the limit of a record
    ],
)
def test_a_loss_that_diverged_is_kept(
    fields: str, loss: float, metrics: dict[str, float] | None
) -> None:
    (found,) = parse(bar("Epoch 0: ", 3, 4, fields))
    assert found is not None
    assert (found["loss"], found.get("metrics")) == (loss, metrics)
    assert check_progress(json.loads(json.dumps(found), parse_constant=str))["loss"] in (
        *NOT_FINITE,
        0.5,
    )


def test_the_last_metrics_of_a_job_with_only_bars_of_loops_are_final() -> None:
    (found,) = ConsoleParser().feed(f"{bar('Epoch 0: ', 4, 4, ', acc=0.9')}\n".encode())
    assert is_whole(found)
    assert found["metrics"] == {"acc": 0.9}


@pytest.mark.parametrize(
    "line",
    [
        bar("", 3, 4),
        bar("Loading: ", 3, 4),
        bar("Downloading data: ", 300, 400, speed="345B/s"),
        # The preparation of data for the training.
        bar("Generating train split: ", 9, 9, speed="91876.01 examples/s"),
        bar("Generating train split: ", 9, 9),
        bar("train: ", 9, 9, speed="91876.01 examples/s"),
        bar("train: ", 9, 9, speed="12.1files/s"),
        bar("train: ", 9, 9, speed="1.50s/file"),
        bar("Running tokenizer on train dataset: ", 9, 9),
        bar("Loading training images: ", 9, 9),
        bar("Map (train): ", 9, 9),
        bar("Map (num_proc=4) [train]: ", 9, 9),
        bar("Filter train: ", 9, 9),
        bar("Downloading train data: ", 9, 9),
        bar("Preprocessing training set: ", 9, 9),
        bar("Packing train: ", 9, 9),
        bar("Applying chat template to train: ", 9, 9),
        bar("train: Scanning /data/labels/train2017.cache: ", 9, 9),
        bar("Extracting train.zip: ", 9, 9),
        bar("train.zip: ", 9, 9),
        bar("/data/train: ", 9, 9),
        bar("/data/train/cats: ", 9, 9),
        bar("train_features: ", 9, 9),
        bar("constrained search: ", 9, 9),
        bar("train_val: ", 9, 9),
        "train.zip:  45%|####      | 1.2M/2.5M [00:01<00:02, 345kB/s]",
        bar("Sanity Checking DataLoader 0: ", 1, 2),
        bar("Validation DataLoader 0: ", 1, 2, ", val_loss=0.3"),
        bar("Epoch 3 [val]: ", 1, 2, ", loss=0.3"),
        bar("Predicting DataLoader 0: ", 1, 2),
        "Epoch 3: 4it [00:01, 3.9it/s]",
        "Epoch 3:  40%|####",
    ],
)
def test_other_bars_do_not_count(line: str) -> None:
    assert parse(line) == [None]


@pytest.mark.parametrize(
    ("speed", "steps_per_s"),
    [
        ("3.91it/s", 3.91),
        ("2.50s/it", 0.4),
        ("12.0batch/s", 12.0),
        ("?it/s", None),
        ("0s/it", None),
        ("1.20kit/s", 1200.0),
        ("2.50 batches/s", 2.5),
        ("2.50s/ batch", 0.4),
    ],
)
def test_the_speed(speed: str, steps_per_s: float | None) -> None:
    (found,) = parse(bar("train: ", 1, 4, speed=speed))
    assert found is not None
    assert found.get("steps_per_s") == steps_per_s


def test_a_log_of_bars_that_are_drawn_over_each_other() -> None:
    first, second = bar("Epoch 0: ", 1, 4), bar("Epoch 0: ", 2, 4, ", train_loss=0.5")
    log = f"\n\r{first}\x1b[A\r{second}\n".encode()
    parser = ConsoleParser()
    found = [record for byte in log for record in parser.feed(bytes([byte]))]
    assert [record["step"] for record in found] == [1, 2]
    assert found[-1]["loss"] == 0.5


def test_a_bar_within_a_fit_of_keras_does_not_count() -> None:
    log = f"Epoch 1/2\n3/12 - 1s - loss: 0.5000\n{bar('train: ', 1, 4)}\n"
    found = ConsoleParser().feed(log.encode())
    assert [record["epochs"] for record in found] == [2, 2]


def test_a_rank_does_not_hang_after_a_bar() -> None:
    """It may validate or save for a long time, without any output."""
    for label in ("Epoch 0: ", "training: "):
        bars, seen = LoopBars(), pace.Pace(factor=10, least=1)
        for done in range(20):
            record = bars.line(bar(label, done, 40))
            assert record is not None
            seen.feed([record], float(done))
        assert seen.overdue(10_000.0) == ""


def places(*lines: str) -> list[str]:
    """Return the epochs, steps and phases of the records of a log."""
    found = ConsoleParser().feed("".join(f"{line}\n" for line in lines).encode())
    names = ("epoch", "epochs", "step", "steps")
    return [
        f"{record['phase'][0]}:" + ",".join(str(record.get(name, "")) for name in names)
        for record in found
    ]


LOSS = ", loss=0.5"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # The usual loop, whose validation has a loss as well.
        (
            [
                *("Epoch 1/3", bar("", 0, 4), bar("", 2, 4, LOSS), bar("", 4, 4, LOSS)),
                *(bar("", 1, 2, LOSS), bar("", 2, 2, LOSS), "Epoch 2/3", bar("", 1, 4, LOSS)),
            ],
            ["t:1,3,,", "t:1,3,2,12", "t:1,3,4,12", "t:2,3,,", "t:2,3,5,12"],
        ),
        # A validation of the same length.
        (
            ["Epoch 1/2", *(bar("", done, 4, LOSS) for done in (1, 4, 4, 1, 3, 4))],
            ["t:1,2,,", "t:1,2,1,8", "t:1,2,4,8", "t:1,2,4,8"],
        ),
        (
            ["Epoch 1/2", bar("val: ", 2, 2, LOSS), bar("train: ", 2, 4)],
            ["t:1,2,,", "t:1,2,2,8"],
        ),
        # Counted from 0, up to the number of epochs or to one less, and in other words.
        (
            ["Epoch 0/2", bar("", 4, 4, LOSS), "Epoch 1/2", bar("", 3, 4, LOSS)],
            ["t:1,2,4,8", "t:2,2,7,8"],
        ),
        (
            ["Epoch 0/1", bar("", 4, 4, LOSS), "Epoch 1/1", bar("", 3, 4, LOSS)],
            ["t:1,1,4,4", "t:2,2,7,8"],
        ),
        (["=== Epoch [2/3] ===", bar("", 3, 4, LOSS)], ["t:2,3,7,12"]),
        (["Epoch 2 of 3:", bar("", 3, 4, LOSS)], ["t:2,3,7,12"]),
        # Printed after the bar of the epoch.
        (
            [bar("", 4, 4, LOSS), "epoch: 1/3", bar("", 1, 4, LOSS), "epoch: 2/3"],
            ["t:,,4,", "t:,,5,"],
        ),
        # A label comes first.
        (["Epoch 1/3", bar("Epoch 2/5: ", 3, 4)], ["t:1,3,,", "t:2,5,7,20"]),
        # Bars around those of the steps.
        (
            [bar("Training: ", 0, 3), bar("", 1, 9, LOSS), bar("Training: ", 1, 3)],
            ["t:,,0,", "t:,,1,"],
        ),
        ([bar("Epoch 1/3: ", 9, 9), bar("Training: ", 1, 3)], ["t:1,3,9,27"]),
        # A loss that is not shown from the beginning of each bar.
        (
            [bar("train: ", 9, 9, LOSS), bar("train: ", 1, 9), bar("train: ", 9, 9, LOSS)],
            ["t:,,9,", "t:,,10,", "t:,,18,"],
        ),
        # Keras evaluates and predicts in a loop of the script.
        (
            [
                *("Epoch 1/2", bar("", 4, 4, LOSS), "2/2 - 1s - 9ms/step - loss: 0.5000"),
                *("2/2 - 1s - 9ms/step", "Epoch 2/2", bar("", 4, 4, LOSS)),
            ],
            ["t:1,2,,", "t:1,2,4,8", "e:1,2,,", "p:1,2,,", "t:2,2,,", "t:2,2,8,8"],
        ),
        (
            [bar("", 4, 4, LOSS), "2/2 - 1s - 9ms/step - loss: 0.5000", bar("", 1, 4, LOSS)],
            ["t:,,4,", "e:,,,", "t:,,5,"],
        ),
        # Keras trains, before or after that.
        (
            ["Epoch 1/2", "4/4 - 1s - 9ms/step - loss: 0.5000", bar("Epoch 1: ", 1, 4, LOSS)],
            ["t:1,2,,", "t:1,2,4,8"],
        ),
        (
            ["4/4 - 1s - 9ms/step - loss: 0.5000", bar("Epoch 1: ", 1, 4, LOSS)],
            ["t:1,1,4,4"],
        ),
        (
            ["Epoch 0/2", "4/4 - 1s - 9ms/step - loss: 0.5000"],
            ["t:1,1,4,4"],
        ),
        (
            [bar("train: ", 4, 4), "4/4 - 1s - 9ms/step - loss: 0.5000"],
            ["t:,,4,", "t:1,1,4,4"],
        ),
        # A bar of the preparation is not of the epoch.
        (["Epoch 1/3", bar("Loading train images: ", 1, 4)], ["t:1,3,,"]),
    ],
)
def test_epochs_that_are_printed_before_the_bar(lines: list[str], expected: list[str]) -> None:
    assert places(*lines) == expected


@pytest.mark.parametrize(
    ("label", "fields", "loss", "metrics"),
    [
        ("", ", Loss=0.52, Acc=0.5", 0.52, {"Acc": 0.5}),
        ("", ", LOSS=nan", math.nan, None),
        ("", ", Train Loss=0.52", 0.52, None),
        ("", ", train/loss=0.52, lr=0.1", 0.52, {"lr": 0.1}),
        ("", ", Loss=0.52, train_loss=0.6", 0.52, {"train_loss": 0.6}),
        ("loss: 0.52: ", "", 0.52, None),
        ("Loss=1.5e-03 ", "", 1.5e-3, None),
        ("loss 0.52 ", "", 0.52, None),
        ("loss: nan: ", "", math.nan, None),
        ("loss: -inf: ", "", -math.inf, None),
        ("[train] avg loss: -0.52 acc: 0.9 ", "", -0.52, None),
        ("Step 7 loss: 3: ", "", 3.0, None),
        ("loss: 0.52: ", ", loss=0.4", 0.4, None),
    ],
)
def test_ways_to_write_a_loss(
    label: str, fields: str, loss: float, metrics: dict[str, float] | None
) -> None:
    (found,) = parse(bar(label, 3, 4, fields))
    assert found is not None
    assert found["loss"] == pytest.approx(loss, nan_ok=True)
    assert found.get("metrics") == metrics
    assert found["step"] == 3


@pytest.mark.parametrize(
    "label",
    [
        "best loss: 0.52: ",
        "loss 3/4: ",
        "loss 3 ",
        "val loss: 0.5: ",
        "gloss: 0.5 ",
        "loss: 0.5.1 ",
    ],
)
def test_other_numbers_are_no_loss(label: str) -> None:
    assert parse(bar(label, 3, 4)) == [None]


@pytest.mark.parametrize(
    ("label", "place"),
    [
        ("Epoch 1/5 | train: ", (1, 5, 3)),
        ("Epoch 2/5 | lr 0.1 | loss: 0.5: ", (2, 5, 7)),
        ("| Epoch 2 of 5 | ", (2, 5, 7)),
    ],
)
def test_a_label_with_lines(label: str, place: tuple[int, int, int]) -> None:
    (found,) = parse(bar(label, 3, 4))
    assert found is not None
    assert (found["epoch"], found["epochs"], found["step"]) == place
    assert parse(bar("Epoch 1/5 | val: ", 3, 4, ", loss=0.5")) == [None]
