"""The estimate of how training scales, from invented times, and the maps of paths."""

from __future__ import annotations

from typing import Any

import pytest

from train.cli import doctor
from train.gang.doctor.doctor_records import Trained


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_latency_and_rate_of_a_ring_come_back(hosts: int) -> None:
    steps = 2 * (hosts - 1)
    times = {size: steps * (0.3 + size / hosts / 12_500.0) for size in (1e6, 1e7, 1e8)}
    latency, rate = doctor.fit(times, hosts)
    assert latency == pytest.approx(0.3)
    assert rate == pytest.approx(12_500.0)
    # The first size took so long that the others were left out.
    assert doctor.fit({1e6: times[1e6]}, hosts)[0] == 0.0


def test_sums_of_other_sizes_and_hosts() -> None:
    # Between two hosts, a step passes on half of the bytes, in half of the time of a sum.
    measured = {1e6: 2.0, 1e7: 11.0, 1e8: 201.0}

    def took(size: float, hosts: int) -> float:
        return doctor.all_reduce(size, hosts, measured, 2)

    assert [took(size, 2) for size in measured] == pytest.approx([*measured.values()])
    assert took(4e6, 2) == pytest.approx(5.0)  # on the line from 2 to 11
    assert took(5e7, 2) == pytest.approx(11 + 190 * 4 / 9)
    assert took(5e5, 2) == pytest.approx(1.5)  # on the same line below it
    assert took(2e8, 2) == pytest.approx(402.0)
    # Six steps, each of which passes on a quarter of the bytes.
    assert took(4e6, 4) == pytest.approx(6 * took(2e6, 2) / 2)
    assert took(1e6, 1) == 0.0
    assert doctor.all_reduce(3e6, 2, {1e6: 80.0}, 2) == pytest.approx(240.0)


def test_on_how_many_hosts_is_trained() -> None:
    assert [doctor.counts(hosts) for hosts in (1, 2, 3, 4, 6, 8)] == [
        *([1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8]),
    ]


def trained(hosts: int, step: float, exchange: float) -> Trained:
    compute = step - exchange
    return Trained(
        hosts=hosts, step_ms=step, compute_ms=compute, exchange_ms=exchange, predicted_ms=0.0
    )


def test_what_follows_from_the_times() -> None:
    # Two hosts on a link of 100 Mbit/s: a sum of N bytes takes N / 12.5 µs.
    times = {1.0: 80.0, 10.0: 800.0}
    alone, both = trained(1, 100.0, 0.0), trained(2, 186.0, 86.0)
    found = doctor.conclude(times, [alone, both], "resnet20", 64)
    assert found["rate_mb"] == pytest.approx(12.5)
    assert found["trained"][1]["predicted_ms"] == pytest.approx(100 + 4 * 269_722 / 12_500, 0.01)
    assert found["efficiency"]["1000000"] == pytest.approx(100 / 420, 0.01)
    # Four times as many examples take four times 100 ms. The exchange takes as long as before.
    advice = "with 221 examples per host, or --accumulate 4, this share would be 20%"
    assert advice in found["advice"][0]
    lines = doctor.text_of(found)
    assert any("2 hosts: 186.0 ms per step (predicted 186.3), efficiency 54%" in x for x in lines)


def test_one_host_and_a_fast_network_need_no_advice() -> None:
    alone, both = trained(1, 10.0, 0.0), trained(2, 10.7, 0.7)
    assert doctor.conclude({}, [alone], "mnist-cnn", 64)["efficiency"] == {}
    found = doctor.conclude({1.0: 0.5, 10.0: 5.0}, [alone, both], "mnist-cnn", 64)
    assert found["advice"] == []


def test_the_maps_of_paths_begin_at_zero() -> None:
    link: Any = {"sent_mbit": 9400.0, "resent": 0.015}
    slow: Any = {"sent_mbit": 9300.0, "resent": 0.0}
    charts = {chart["title"]: chart for chart in doctor._maps({"a": {"b": link}, "b": {"a": slow}})}
    assert list(charts) == ["Rate, Gbit/s", "Retransmitted, %"]
    (rates,), (resent,) = (chart["traces"] for chart in charts.values())
    assert rates["z"] == [[None, pytest.approx(9.4)], [pytest.approx(9.3), None]]
    assert (rates["zmin"], rates["zmax"]) == (0, pytest.approx(9.4))
    assert resent["z"][0][1] == pytest.approx(1.5)


def test_results_of_older_versions_name_no_framework() -> None:
    checkup: Any = {"packages": {"tensorflow": "2.21.0", "jax": "0.9"}}
    assert doctor._COLUMNS[0][1](checkup) == "tensorflow 2.21.0"
    assert doctor._COLUMNS[0][1]({**checkup, "framework": "jax"}) == "jax 0.9"
