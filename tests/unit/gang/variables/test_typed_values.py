"""Values of variables in their types, and how messages show them."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from train.gang.variables import typed_values
from train.gang.variables.typed_values import Option


def option(kind: str, *choices: Any, least: float | None = None) -> Option:
    return Option(kind, choices, least, secret=False, for_rank=False)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "12", 12),
        ("int", " 12 ", 12),
        ("int", 3.0, 3),
        ("int", "3.0", 3),
        ("float", "1e3", 1000.0),
        ("bool", " Yes ", True),
        ("bool", 0, False),
        ("str", 1.5, "1.5"),
        ("path", datetime.date(2026, 1, 2), "2026-01-02"),
        ("list", "one", ["one"]),
        ("list", ("a", "b"), ["a", "b"]),
        ("dict", {"a": 1}, {"a": 1}),
        ("raw", None, None),
    ],
)
def test_a_value_gets_the_type_of_its_variable(kind: str, value: Any, expected: Any) -> None:
    assert typed_values._as_type(value, kind) == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "3.5", "a whole number"),
        ("int", True, "a whole number"),
        ("int", "0x10", "a whole number"),
        ("int", "1e400", "a whole number"),
        ("float", 10**400, "a number"),
        ("float", "nan", "a number"),
        ("float", float("inf"), "a number"),
        ("bool", "2", "true or false"),
        ("str", False, "a string"),
        ("str", None, "a string"),
        ("path", ["/data"], "a path"),
        ("list", ["a", 1], "a list"),
        ("dict", [], "a dictionary"),
    ],
)
def test_a_value_without_that_type_is_refused_with_the_type(
    kind: str, value: Any, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"^{expected}$"):
        typed_values.converted(value, option(kind))


def test_limits_and_choices_are_part_of_the_refusal() -> None:
    assert typed_values.converted("1", option("int", least=1)) == 1
    with pytest.raises(ValueError, match=r"^a whole number of 1 or more$"):
        typed_values.converted("0", option("int", least=1))
    assert typed_values.converted("3", option("int", 2, 3)) == 3
    with pytest.raises(ValueError, match=r"^one of 2, 3$"):
        typed_values.converted(4, option("int", 2, 3))


def test_the_script_gets_numbers_as_they_were_written() -> None:
    assert typed_values.text_of(1.1, lambda value: "1.10") == "1.10"
    assert typed_values.text_of(0.5, lambda value: None) == "0.5"
    assert typed_values.text_of("007", lambda value: None) == "007"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "a boolean"),
        (None, "null"),
        (["a"], "a list"),
        ({"a": 1}, "a dictionary"),
        (b"x", "binary data"),
        ({1}, "a set"),
        ("a\0b", "a string with a NUL character"),
    ],
)
def test_a_value_without_a_text_is_refused_with_its_type(value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"^{kind}$"):
        typed_values.text_of(value, lambda value: "yes")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ("höher", 'a string, "höher"'),
        (True, "a boolean, true"),
        (datetime.date(2026, 1, 2), 'a date, "2026-01-02"'),
        ("x" * 100, f'a string, "{"x" * 59}...'),
        ({1: {2}}, "a dictionary, "),
    ],
)
def test_a_message_shows_a_value_with_its_type(value: Any, shown: str) -> None:
    assert typed_values.shown(value).startswith(shown)
    assert len(typed_values.shown(value)) < 100
