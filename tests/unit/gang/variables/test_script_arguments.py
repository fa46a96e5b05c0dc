"""The arguments of the script, as a list and as a string."""

from __future__ import annotations

import re
from typing import Any

import pytest

from train.gang.variables import script_arguments


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, []),
        ([], []),
        ("", []),
        ("--steps 3 --lr 0.1", ["--steps", "3", "--lr", "0.1"]),
        ("--name 'a b' \"c d\"  e\\ f", ["--name", "a b", "c d", "e f"]),
        ("--a \\\n  --b\n--c\n", ["--a", "--b", "--c"]),
        ("--tpl '{{ item }}' '' # no comment", ["--tpl", "{{ item }}", "", "#", "no", "comment"]),
        ("['--steps', 3, yes]", ["--steps", "3", "yes"]),
        ("[a", ["[a"]),
        (["--steps", "3", ""], ["--steps", "3", ""]),
    ],
)
def test_arguments_from_a_string_and_a_list(value: Any, words: list[str]) -> None:
    assert script_arguments.words(value, lambda value: None) == words


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("--a 'b", "cannot be split like a shell command (No closing quotation)"),
        ("--a \\", "cannot be split like a shell command (No escaped character)"),
        ({"a": "b"}, 'is a dictionary, {"a": "b"}, expected a list or a string'),
        (5, "is a whole number, 5, expected a list or a string"),
        (True, "is a boolean, true, expected a list or a string"),
        ([["--a"]], "has a list as item 1"),
    ],
)
def test_arguments_of_a_wrong_type(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        script_arguments.words(value, lambda value: None)
