"""The reasons why hosts did not answer."""

from __future__ import annotations

from typing import Any

from train.gang import answers, login_failures

REFUSED = login_failures.failure("refused")


def test_hosts_with_the_same_reason_are_named_together() -> None:
    lost = {"unreachable": True, "msg": REFUSED.text}
    full = {"failed": True, "msg": "no space"}
    broken = {"failed": True, "msg": "no Python"}
    found: dict[str, dict[str, Any]] = {
        "a": full,
        "b": lost,
        "c": {"jobs": []},
        "d": broken,
        "e": full,
        "f": lost,
    }
    assert list(answers.failed(found)) == ["a", "b", "d", "e", "f"]
    lines = [f"b and f are unreachable: {REFUSED.text}", "a and e: no space", "d: no Python"]
    assert answers.reasons(found) == "\n".join(lines)
    assert answers.reasons({"c": {"jobs": []}}) == ""
