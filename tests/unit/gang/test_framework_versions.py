"""Versions of frameworks on hosts, compared with each other and with a job's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.gang.hostile import FACTS
from train.gang import framework_versions

JAX: Any = {**FACTS, "versions": {"jax": "0.4.30", "keras": "3.5.0"}}


def test_all_versions_of_a_package_are_listed_in_order() -> None:
    other: Any = {**JAX, "versions": {"jax": "0.4.29"}, "tensorflow": "2.21.0"}
    found = framework_versions.of_all({"a": JAX, "b": other})
    assert list(found.items()) == [
        ("jax", ["0.4.29", "0.4.30"]),
        ("keras", ["3.5.0"]),
        ("tensorflow", ["2.21.0"]),
    ]


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"jax": ["0.4.30"], "keras": ["3.5.0"]}, ""),
        ({"jax": ["0.4.29"]}, "it has jax 0.4.30, but the job trains with 0.4.29"),
        ({"jax": ["0.4.28", "0.4.29"]}, "it has jax 0.4.30, but .* with 0.4.28 and 0.4.29"),
        ({"jax": "0.4.29", "tensorflow": ["2.21.0"]}, ""),  # no list, and not on the host
        ({}, ""),  # a job of an older version
    ],
)
def test_a_host_with_another_version_is_described(known: Any, text: str) -> None:
    found = framework_versions.differing(JAX, known)
    assert re.fullmatch(text, found)
