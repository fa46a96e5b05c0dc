"""Logs as lines of a terminal: progress bars, control characters, bytes that are not text."""

from __future__ import annotations

import pytest

from tests.support.lab import REPOSITORY
from train.host.terminal import MAX_LINE, LogLines


def show(data: bytes, size: int) -> list[str]:
    """Return all lines of a log that arrives in pieces of ``size`` bytes."""
    lines = LogLines(interval=3600)
    found = []
    for begin in range(0, len(data), size):
        found += lines.feed(data[begin : begin + size])
    return found + lines.finish()


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\n\ntwo", ["one", "", "", "two"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (
            b"\r1/2 - 1" + 9 * b"\b" + b"\r2/2 - 0.5WARNING: x\nnext\n",
            ["2/2 - 0.5WARNING: x", "next"],
        ),
        (b"\r 10%|#         | 1/10\r100%|##########| 10/10\n", ["100%|##########| 10/10"]),
        (b"bar\b\b\b\r\n", ["bar"]),
        (b"\b\b\b\r\nafter\n", ["after"]),
        (b"bytes \xff\xfe and \xc3\xa9\n", ["bytes \ufffd\ufffd and \xe9"]),
        (b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\tx\x07\x00\n", ["red\tx"]),
        ("next line \x85 and \x9b31m\n".encode(), ["next line  and 31m"]),
        ("one \u2028 line\n".encode(), ["one \u2028 line"]),
        (b"", []),
    ],
)
def test_lines_are_as_a_terminal_shows_them(data: bytes, expected: list[str], size: int) -> None:
    assert show(data, size) == expected


def test_a_bar_that_is_being_drawn_is_shown_now_and_then() -> None:
    lines = LogLines(interval=0)
    assert lines.feed(b"\r1/9 - loss: 0.9") == [], "the number may not be whole yet"
    assert lines.feed(b"\b\b\b\r2/9 - loss: 0.8") == ["1/9 - loss: 0.9"]
    assert lines.feed(b"\b\b\b\r3/9 - loss: 0.7\b\b\b\r4/9 - lo") == ["3/9 - loss: 0.7"]
    assert lines.feed(b"ss: 0.6\b\b") == ["4/9 - loss: 0.6"]
    assert lines.feed(b"\b\r") == [], "it was shown"
    assert lines.feed(b"\n") == [], "it was shown"
    assert lines.feed(b"the end\n") == ["the end"]


def test_of_many_states_at_once_the_last_is_enough() -> None:
    lines = LogLines(interval=0)
    data = b"".join(b"\b\b\r%d/1000" % step for step in range(1000))
    assert lines.feed(data) == ["998/1000"]


def test_what_never_ends_takes_no_memory() -> None:
    lines = LogLines(interval=3600)
    for _ in range(100):
        assert lines.feed(b"\r" + b"x" * 50_000) == []
    assert len(lines._rest) < 200_000
    found = []
    for _ in range(10):
        found += lines.feed(b"y" * MAX_LINE)
    assert "".join(found).count("y") >= 8 * MAX_LINE


BAR2, BAR3 = "12/12 [==============================] - ", f"12/12 {'━' * 20} "

REAL = {
    "keras2-plain-verbose1": [
        "Epoch 1/2",
        " 6/12 [==============>...............] - ETA: 0s - loss: 0.7274 - accuracy: 0.4375WARNING",
        BAR2 + "1s 72ms/step - loss: 0.6638 - accuracy: 0.5833 - val_loss: 0.6867 - val_accuracy:",
        "Epoch 2/2",
        BAR2 + "1s 64ms/step - loss: 0.6531 - accuracy: 0.6146 - val_loss: 0.6741 - val_accuracy:",
        BAR2 + "0s 740us/step - loss: 0.6438 - accuracy: 0.6250",
        BAR2 + "0s 659us/step",
    ],
    "keras3-plain-verbose1": [
        "Epoch 1/2",
        BAR3 + "1s 81ms/step - accuracy: 0.5833 - loss: 0.6638 - val_accuracy: 0.5625 - val_loss",
        "Epoch 2/2",
        BAR3 + "1s 67ms/step - accuracy: 0.6354 - loss: 0.6509 - val_accuracy: 0.5938 - val_loss",
        BAR3 + "0s 2ms/step - accuracy: 0.6250 - loss: 0.6437",
        BAR3 + "0s 1ms/step",
    ],
}


@pytest.mark.parametrize("size", [7, 100, 10_000])
@pytest.mark.parametrize("name", REAL)
def test_what_keras_really_writes(name: str, size: int) -> None:
    data = (REPOSITORY / f"tests/data/console/{name}.log").read_bytes()
    shown = show(data, size)
    begin = shown.index("Epoch 1/2")
    assert len(shown) - begin == len(REAL[name])
    for line, expected in zip(shown[begin:], REAL[name], strict=True):
        assert line.startswith(expected)
