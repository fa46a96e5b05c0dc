"""What keeps ranks from one another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.unit.gang.watch.made_up_views import view
from train.gang import cause_names
from train.gang.watch.diagnosis import Diagnosis, explain, peers_of
from train.gang.watch.views import Target
from train.host.records import Probed

PEERS = {f"worker-{index}": (f"10.0.0.{index + 1}", 12345) for index in range(3)}


def test_where_the_ranks_are() -> None:
    cluster = {"chief": ["[fd00::2]:12345"], "worker": ["10.0.0.1:23456"]}
    assert peers_of(cluster) == {"chief-0": ("fd00::2", 12345), "worker-0": ("10.0.0.1", 23456)}


ALL = dict.fromkeys(PEERS, "open")
NOT_1: dict[str, Any] = {"reached": {**ALL, "worker-1": "timeout"}}
OUT: dict[str, Any] = {"reached": dict.fromkeys(ALL, "timeout")}
#: Two ranks that do not reach each other, while both reach the third one.
BOTH: dict[str, Any] = {"reached": {**OUT["reached"], "worker-2": "open"}}


@pytest.mark.parametrize(
    ("probed", "task", "cause", "reason"),
    [
        ([{}, {}], None, None, ""),
        # A rank that does not listen yet is waited for. Addresses may be translated on the way.
        ([{"reached": {**ALL, "worker-1": "refused"}}, {"listening": False}], None, None, ""),
        ([{}, {"own": False}], None, None, ""),
        ([NOT_1, {"own": False}], "worker-1", cause_names.ADDRESS, "whose addresses are 10.0.0.9"),
        (
            [NOT_1, {}],
            "worker-1",
            cause_names.BLOCKED,
            "no other rank can reach it at 10.0.0.2:12345 (worker-0",
        ),
        ([{}, {}, NOT_1], "worker-1", cause_names.NETWORK, "by some ranks (worker-2: timeout)"),
        (
            [BOTH, BOTH, {}],
            None,
            cause_names.NETWORK,
            "worker-0 and worker-1 cannot reach each other",
        ),
        (
            [{}, OUT, {}],
            "worker-1",
            cause_names.NETWORK,
            "cannot reach worker-0, worker-2, although",
        ),
        (
            [NOT_1, OUT, NOT_1],
            "worker-1",
            cause_names.NETWORK,
            "is cut off: it cannot reach worker-0",
        ),
        ([OUT, OUT, OUT], "worker-0", cause_names.BLOCKED, "no other rank can reach it"),
        ([{"proxy": "http_proxy"}, {}], "worker-0", cause_names.PROXY, "because http_proxy is set"),
    ],
)
def test_what_keeps_ranks_from_one_another(
    probed: list[dict[str, Any]], task: str | None, cause: str | None, reason: str
) -> None:
    fine = Probed(reached=ALL, listening=True, own=True, addresses=["10.0.0.9"], proxy="")
    hosts: Any = {f"worker-{index}": {**fine, **own} for index, own in enumerate(probed)}
    found = explain(hosts, PEERS)
    assert (found and found.task, found and found.cause) == (task, cause), found
    assert found is None or reason in found.reason


def test_hosts_that_cannot_look_say_nothing() -> None:
    def ask(target: Target, peers: Any) -> dict[str, Any]:
        raise OSError("gone")

    diagnosis = Diagnosis([view("worker-0").target, view("worker-1").target], PEERS, ask)
    wait_until(lambda: diagnosis.done, diagnosis)
    assert diagnosis.finding() is None
