"""The control node's part of the role ``clock_sync``: clocks without a source are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.tensorflow_ansible.cluster.plugins.filter import clock_sync

from tests.support.lab import REPOSITORY

START = 1_790_000_000.0


def host(ahead: float, source: bool = False, answers: int = 4, slow: float = 0.02) -> Any:
    """Return the variables of a host that was asked every 0.1 s; ``slow`` is the delay in s."""
    asked = [START + 0.1 * number for number in range(answers)]
    stdout = [f"{at:.6f} {at + slow + ahead:.9f}\r\n" for at in asked]
    return {
        "__clock_sync_clock": {"rc": 0 if source else 1},
        "__clock_sync_readings": {"results": [{"stdout": text} for text in stdout]},
    }


def compare(hosts: Mapping[str, Any], allowed: float = 0.5) -> dict[str, Any]:
    without = clock_sync.without_source(hosts, hosts)
    return clock_sync.compare(hosts, hosts, without, allowed)


def test_hosts_without_a_source_are_those_where_chrony_follows_none_or_is_missing() -> None:
    hosts = {"a": host(0, source=True), "b": host(0), "c": {}}
    hosts["d"] = {"__clock_sync_clock": {"skipped": True}}
    assert clock_sync.without_source(hosts, hosts) == ["b", "c", "d"]


def test_a_clock_is_bounded_by_the_question_and_the_next_one() -> None:
    times = ["100.0 105.05", "100.4 105.41", "100.5 105.52"]
    assert clock_sync.bounds_of(times) == pytest.approx((4.91, 5.01))
    # Text that is not a reading is ignored. A single reading gives no bounds.
    assert clock_sync.bounds_of(["", "Welcome!", "100.0 105.0"]) is None


@pytest.mark.parametrize(
    ("hosts", "reference", "agree"),
    [
        # Most hosts decide, not the first one; with two, the first one does.
        ({"a": host(5), "b": host(0), "c": host(0.1)}, "b", ["b", "c"]),
        ({"a": host(5), "b": host(0)}, "a", ["a"]),
        # A host that follows a source is right, however many others agree.
        ({"a": host(5), "b": host(5), "c": host(0, source=True)}, "c", ["c"]),
        ({"a": host(-0.4), "b": host(0.4), "c": host(0)}, "c", ["a", "b", "c"]),
    ],
)
def test_the_clock_that_most_agree_with_is_the_reference(
    hosts: dict[str, Any], reference: str, agree: list[str]
) -> None:
    compared = compare(hosts)
    assert (compared["reference"], compared["agree"]) == (reference, agree)
    far = set(hosts) - set(agree)
    assert all(4.8 < abs(compared["ahead"][name]) <= 5 for name in far)


def test_slow_answers_are_no_reason_to_refuse_a_clock() -> None:
    hosts = {"a": host(0, slow=0.0), "b": host(0, slow=0.09)}
    assert compare(hosts, allowed=0.01)["agree"] == ["a", "b"]
    assert 0.05 < compare(hosts)["within"] < 0.2


def test_a_host_that_does_not_answer_is_named() -> None:
    hosts = {"a": host(0), "b": host(0, answers=1), "c": {}}
    compared = compare(hosts)
    assert (compared["agree"], compared["unread"]) == (["a"], ["b", "c"])
    assert compare({"c": {}})["reference"] == ""


def value(name: str, *lines: str, policy: Mapping[str, list[str]] | None = None) -> Any:
    """Return a variable of the role for a host whose state has these lines."""
    path = str(REPOSITORY / "roles/clock_sync/vars/main.yml")
    known = DataLoader().load_from_file(path, trusted_as_template=True)
    known["__clock_sync_state"] = {"stdout_lines": list(lines)}
    known["__clock_sync_policy"] = policy or {}
    return Templar(DataLoader(), known).template(trust_as_template("{{ " + name + " }}"))


@pytest.mark.parametrize(
    ("bounding_set", "expected"),
    [("000001ffffffffff", True), ("0000000002000000", True), ("00000000a80425fb", False)],
)
def test_the_capabilities_tell_whether_the_clock_may_be_set(
    bounding_set: str, expected: bool
) -> None:
    lines = ["installed", "systemd-timesyncd.service enabled enabled"]
    assert value("__clock_sync_may_set", *lines, f"capabilities {bounding_set}") is expected


@pytest.mark.parametrize(
    ("chronyd", "candidate", "too_old"),
    [
        ("chronyd (chrony) version 4.3 (+CMDMON +NTP)", None, False),
        ("chronyd (chrony) version 3.5 (+CMDMON +NTP)", None, True),
        ("chronyd (chrony) version 4.10 (+CMDMON +NTP)", "3.5-6ubuntu6.2", False),
        ("", "3.5-6ubuntu6.2", True),
        ("", "1:4.0-8+deb11u2", False),
        ("", "(none)", False),
        ("", None, False),
    ],
)
def test_chrony_before_4_is_too_old(chronyd: str, candidate: str | None, too_old: bool) -> None:
    lists = ["chrony:", "  Installed: (none)", f"  Candidate: {candidate}", "  Version table:"]
    read = {} if candidate is None else {"stdout_lines": lists}
    lines = ["installed", chronyd] if chronyd else []
    assert value("__clock_sync_too_old", *lines, "capabilities 0", policy=read) is too_old
