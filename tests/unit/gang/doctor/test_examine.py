"""How the doctor asks hosts, and what it accepts from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import free_port
from train.gang import reports, suitability_rules
from train.gang.doctor import examine
from train.host import checkup, frameworks
from train.host.checkup import Checkup


@pytest.mark.parametrize("count", range(2, 10))
def test_everyone_meets_everyone_in_disjoint_pairs(count: int) -> None:
    names = [f"host-{n}" for n in range(count)]
    peers = examine.rounds(names)
    for now in zip(*peers.values(), strict=True):
        met = dict(zip(names, now, strict=True))
        assert all(peer is None or met[peer] == name for name, peer in met.items())
    assert len(peers["host-0"]) == (count - 1 if count % 2 == 0 else count)
    for name in names:
        assert sorted(filter(None, peers[name])) == [other for other in names if other != name]


def test_the_report_of_a_host_may_be_about_any_framework(tmp_path: Path) -> None:
    params = {
        **{"root": str(tmp_path), "python": sys.executable, "port": free_port(), "full": False},
        **{"lease_dir": str(tmp_path / "leases"), "addresses": [], "framework": "tensorflow"},
        "suitability": suitability_rules.needs({}, ()).request,
    }
    reported: Any = checkup.check(params)
    for framework in frameworks.FRAMEWORKS:
        reported["checkup"]["framework"] = framework
        assert examine._CHECKUP(reported)["checkup"]["framework"] == framework
    reported["checkup"]["framework"] = "theano"
    with pytest.raises(reports.ReportError, match="framework is not one of tensorflow"):
        examine._CHECKUP(reported)


def test_what_a_host_reports_is_checked() -> None:
    whole = dict.fromkeys(Checkup.__annotations__, "")
    with pytest.raises(reports.ReportError, match="checkup"):
        examine._CHECKUP({"checkup": whole})
    with pytest.raises(reports.ReportError, match="has no checkup"):
        examine._CHECKUP({})
    for link in ({"out": "rm -rf"}, {"rtt_ms": -1}, {"mtu": 10**9}, {"sent_mbit": float("nan")}):
        with pytest.raises(reports.ReportError):
            examine._LINKS({"links": {"host-1": link}, "listen_error": ""})
    clean = examine._LINKS(
        {"links": {"host-1": {"met": "\x1b[31mx", "more": 1}}, "listen_error": ""}
    )
    assert clean["links"] == {"host-1": {"met": "x"}}
