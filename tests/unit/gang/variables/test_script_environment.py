"""The environment of the script: values that become text, and errors, which name the variable."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pytest

from train.gang.variables import script_arguments, script_environment


def sources(written: Mapping[Any, str] | None = None) -> script_environment.Sources:
    """Return sources without templates; ``written`` maps values to their spelling in a file."""
    known = dict(written or {})
    return script_environment.Sources(
        lambda value: value, lambda value: known.get(value), lambda value: "hosts.yml:4"
    )


@pytest.mark.parametrize(
    ("value", "written", "text"),
    [
        ("as it is: {{ x }}", {}, "as it is: {{ x }}"),
        ("", {}, ""),
        (4, {}, "4"),
        (8, {8: "010"}, "010"),
        (0.1, {}, "0.1"),
        (1.1, {1.1: "1.10"}, "1.10"),
        (-3, {}, "-3"),
        (datetime.date(2024, 1, 1), {}, "2024-01-01"),
        (
            datetime.datetime(2024, 1, 1, 10),
            {datetime.datetime(2024, 1, 1, 10): "2024-01-01T10:00:00"},
            "2024-01-01T10:00:00",
        ),
    ],
)
def test_numbers_and_dates_become_text_as_they_were_written(
    value: Any, written: Mapping[Any, str], text: str
) -> None:
    assert script_environment.merge([{"A": value}], sources(written)) == ({"A": text}, [])
    assert script_arguments.words([value], written.get) == [text]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "a boolean"),
        (None, "null"),
        ([1], "a list"),
        ({"a": 1}, "a dictionary"),
        (b"x", "binary data"),
        ({"x"}, "a set"),
        ("a\0b", "a string with a NUL character"),
    ],
)
def test_what_is_no_text_is_refused_by_name(value: Any, kind: str) -> None:
    found, problems = script_environment.merge([{"DEBUG": value, "A": "b"}], sources())
    assert found == {"A": "b"}
    assert f"sets DEBUG to {kind} (hosts.yml:4), " in problems[0]
    with pytest.raises(ValueError, match=f"has {kind} as item 2"):
        script_arguments.words(["--debug", value], lambda value: None)


@pytest.mark.parametrize("name", [False, 1, None, "", "A=B", "A\0"])
def test_names_that_no_environment_can_hold(name: Any) -> None:
    found, problems = script_environment.merge([{name: "x"}], sources())
    assert not found
    assert len(problems) == 1
    assert "name" in problems[0]


def test_all_levels_are_merged_and_the_last_one_wins() -> None:
    levels = [{}, {"A": "all", "B": "all"}, None, {"B": "group"}, {"B": 1, "C": "-e"}]
    assert script_environment.merge(levels, sources())[0] == {"A": "all", "B": "1", "C": "-e"}
    assert "is a list" in script_environment.merge([{}, ["A=b"]], sources())[1][0]
    assert "is a string" in script_environment.merge([{}, "A=b"], sources())[1][0]


def test_variables_that_differ_between_ranks() -> None:
    assert script_environment.differing([{"A": "1", "B": "x"}, {"A": "2", "B": "x", "C": ""}]) == [
        "A",
        "C",
    ]
    assert script_environment.differing([{"A": "1"}]) == []
