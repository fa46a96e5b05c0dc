"""Variables as users type them: their YAML, and the conversion of their values."""

from __future__ import annotations

import pytest

from train.gang.extra_variables import Unsafe, is_plain, load, plain


def test_numbers_for_the_script_keep_their_spelling() -> None:
    text = "{train_job_environment: {A: 1.10, 010: true}, train_job_args: [1e-4], other: 010}"
    assert load(text) == {
        "train_job_environment": {"A": "1.10", "010": True},
        "train_job_args": ["1e-4"],
        "other": 8,
    }
    assert load("[1.50]", "train_job_args") == ["1.50"]
    assert load("[1.50]", "other") == [1.5]
    assert load("") is None


def test_tagged_values_are_placeholders_unless_they_are_text() -> None:
    loaded = load("{a: !vault x, b: [!vault x], c: !unsafe '{{ d }}', e: {f: 1}}")
    assert {name: is_plain(value) for name, value in loaded.items()} == {
        **{"a": False, "b": False, "c": True, "e": True}
    }
    assert isinstance(loaded["c"], Unsafe)
    assert isinstance(plain(loaded["c"], "c"), Unsafe)


def test_a_value_that_json_cannot_represent_is_named() -> None:
    assert plain({"a": (1, {"b"})}, "x") == {"a": [1, ["b"]]}
    with pytest.raises(ValueError, match="x has the unsupported type object"):
        plain([object()], "x")
