"""The patterns of lines that Python, TensorFlow, absl, Keras and tqdm print."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from train.host import log_shapes, pace


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2025-01-31 09:00:01.123456: W tensorflow/core/x.cc:12] low", "W"),
        ("W0000 00:00:1738.123    12 x.cc:12] low", "W"),
        ("I0131 09:00:01.123    12 x.cc:12] told", "I"),
        ("2025-01-31 09:00:01,123: F tensorflow/core/x.cc:12] failed", "F"),
        ("2025-01-31 09:00:01 WARNING of the script", None),
        ("Wrong: W0000", None),
    ],
)
def test_the_level_of_a_line(line: str, level: str | None) -> None:
    found = [name for name in "IWEF" if re.match(log_shapes.logged(name), line)]
    assert found == ([level] if level else [])


@pytest.mark.parametrize(
    ("shape", "line", "groups"),
    [
        (log_shapes.EPOCH, "Epoch 3/10", {"epoch": "3", "epochs": "10"}),
        (log_shapes.EPOCH, "Epoch 0/10", None),
        (log_shapes.BATCH, "12/90 [====>", {"batch": "12", "total": "90"}),
        (log_shapes.BATCH, "12/Unknown 3s", {"batch": "12", "total": None}),
        (log_shapes.BATCH, "12/some/path", None),
        (log_shapes.KERAS_BAR, "05/27 10:14:15", None),
        (log_shapes.KERAS_BAR, "05/27 10:14:15 9ms/step", None),
        (log_shapes.TQDM, "40%|####      | 4/10", {}),
        (log_shapes.TQDM, "4it [00:01,  3.9it/s]", {}),
        (log_shapes.TQDM, "40% of 10", None),
    ],
)
def test_progress(shape: str, line: str, groups: dict[str, str | None] | None) -> None:
    found = re.search(shape, line)
    assert (found.groupdict() if found else None) == groups


@pytest.mark.parametrize(
    "sequence",
    [
        b"\x1b[1;31m",
        b"\x1b[?25l",
        b"\x1b]0;title\x07",
        b"\x1b]8;;http://a\x1b\\",
        b"\x1b]0;cut off",
        b"\x1bM",
    ],
)
def test_sequences_of_terminals_are_found_whole(sequence: bytes) -> None:
    assert log_shapes.ESCAPES.sub(b"", sequence) == b""
    assert log_shapes.ESCAPES.search(b"plain [1;31m text") is None


def test_tabs_and_letters_are_no_control_characters() -> None:
    assert log_shapes.CONTROLS.sub("", "a\tb\x00\x1b\x7f\x9b\x85é\n") == "a\tbé"


def test_what_python_writes_on_a_fatal_signal() -> None:
    words = [sys.executable, "-S", "-X", "faulthandler", "-c", "import os\nos.abort()"]
    log = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    assert f"{log_shapes.FATAL}Aborted" in log
    assert f"\n{log_shapes.CURRENT_THREAD}" in log
    assert pace.crashed_in(log) == "<string>, line 2 in <module>"
