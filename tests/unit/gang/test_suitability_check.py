"""Which hosts are examined before they are set up, and how."""

from __future__ import annotations

import pytest

from train.gang import suitability_check


@pytest.mark.parametrize(
    ("run", "skip", "expected"),
    [
        (["all"], [], ["tensorflow", "firewall"]),
        (["firewall"], [], ["firewall"]),
        (["all"], ["tensorflow"], ["firewall"]),
        (["tagged"], [], ["tensorflow", "firewall"]),
        (["all"], ["tagged"], []),
        (["always"], [], []),
    ],
)
def test_tags_choose_roles(run: list[str], skip: list[str], expected: list[str]) -> None:
    assert suitability_check.chosen(["tensorflow", "firewall"], run, skip) == expected
