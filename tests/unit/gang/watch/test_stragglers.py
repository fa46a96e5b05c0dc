"""The slowest rank and the cause, from constructed records and from a running process."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.gang.watch.stragglers import PaceFinding, Stragglers, _Pooled

#: Own parts of a step, in ms: waiting for examples, computing.
USUAL = (1.0, 19.0)
FollowedGang = dict[str, tuple[float, float]]


class Run:
    """A gang with constructed records: one per rank and second, with 10 steps each."""

    def __init__(self, ranks: int = 3, limit: float = 1.5, skew: float = 0.0) -> None:
        self.tasks = [f"worker-{index}" for index in range(ranks)]
        hosts = {task: f"host-{index}" for index, task in enumerate(self.tasks)}
        self.watch = Stragglers(hosts, limit)
        self.second = 0
        self.skew = skew
        self.counted: dict[tuple[str, str], float] = defaultdict(lambda: 100)

    def go(
        self,
        seconds: int,
        slow: Mapping[str, tuple[float, float]] | None = None,
        transfer: float = 5.0,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        times: bool = True,
    ) -> list[PaceFinding]:
        """Return the findings after some seconds of a gang.

        The arguments are the own parts of slow ranks, the ms of the exchange itself, facts of hosts
        (counters as their growth per second), and whether step times are reported.
        """
        found = []
        for _ in range(seconds):
            self.second += 1
            own = {task: (slow or {}).get(task, USUAL) for task in self.tasks}
            longest = max(map(sum, own.values()))
            for number, task in enumerate(self.tasks):
                at, parts = 1e9 + self.second + number * self.skew, own[task]
                record: Any = {"t": at, "step": 10 * self.second}
                if self.second == 1:  # it applies to all later records
                    record["phase"] = "training"
                if times and self.second > 1:
                    exchange = transfer + longest - sum(parts)
                    names = ("input_ms", "compute_ms", "exchange_ms")
                    record["step_time"] = dict(zip(names, (*parts, exchange), strict=True))
                self.watch.add_record(task, record)
                self.watch.add_reading(task, self._reading(task, (facts or {}).get(task, {})))
            found.append(self.watch.finding())
        return [one for one in found if one is not None]

    def _reading(self, task: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next reading of a host that has four cores, of which the rank may use two."""
        found: dict[str, Any] = {
            **{"t": 5.0 + self.second, "machine": task, "all_cores": 4, "cores": 2, "nice": 0},
            **{"cpu_s": 1.0, "wait_s": 0.02, "busy_s": 1.1, "steal_s": 0.0, **facts},
        }
        for name in COUNTERS & set(found):
            self.counted[task, name] += found[name]
            found[name] = self.counted[task, name]
        return found


COUNTERS = {
    *("cpu_s", "wait_s", "busy_s", "steal_s", "periods", "throttled", "thermal"),
    *("tcp_sent", "tcp_resent"),
}


def slow(task: str, *, input_ms: float = 1.0, compute_ms: float = 19.0) -> FollowedGang:
    return {task: (input_ms, compute_ms)}


# ---------------------------------------------------------------------------------- by times


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_even_ranks_are_not_told_and_the_slow_one_is_told_once(ranks: int) -> None:
    run = Run(ranks, skew=-400.0)  # the clocks differ by minutes
    assert run.go(60, slow("worker-0", compute_ms=24.0)) == []
    assert run.go(15, slow("worker-1", compute_ms=59.0)) == []
    [told] = run.go(80, slow("worker-1", compute_ms=59.0))
    assert (told.task, told.host, told.cause) == ("worker-1", "host-1", "compute")
    assert told.factor == pytest.approx(2.5, rel=0.2)  # a quarter of the window was not slow
    assert "worker-1 (host-1) is the slowest rank: its own part of a step takes" in told.text
    assert told.text.endswith("computing: its host reports no reason")

    [over] = run.go(60)
    assert (over.task, over.cause) == ("worker-1", "none")
    assert over.text == "worker-1 (host-1) keeps up with the others again"
    assert run.go(60) == []


def test_nothing_is_told_before_the_window_is_full() -> None:
    run = Run()
    assert run.go(20, slow("worker-2", compute_ms=90.0)) == []
    [found] = run.go(5, slow("worker-2", compute_ms=90.0))
    assert found == PaceFinding("worker-2", "host-2", "compute", found.text, 4.55, [])


def test_the_limit_is_a_variable_and_little_that_is_lost_is_not_told() -> None:
    assert Run(limit=3.0).go(60, slow("worker-1", compute_ms=39.0)) == []
    assert Run(limit=1.2).go(60, slow("worker-1", compute_ms=29.0))
    # Three times the others' own part, and a step takes 400 ms.
    assert Run().go(60, slow("worker-1", compute_ms=59.0), transfer=341.0) == []


def test_waiting_for_examples_is_told_from_computing() -> None:
    [found] = Run().go(40, slow("worker-1", input_ms=30.0, compute_ms=21.0))
    assert (found.cause, found.task) == ("input", "worker-1")
    assert "(51 ms, others 20 ms)" in found.text
    assert "and the extra time is spent waiting for examples: " in found.text


def test_another_rank_is_told_and_an_unreachable_one_ends_the_comparison() -> None:
    run = Run()
    assert [found.task for found in run.go(30, slow("worker-1", compute_ms=59.0))] == ["worker-1"]
    told = run.go(60, slow("worker-2", compute_ms=59.0))
    causes = [(found.task, found.cause) for found in told]
    assert causes == [("worker-1", "none"), ("worker-2", "compute")]
    run.tasks.pop()  # its host is no longer reachable
    assert run.go(60, slow("worker-1", compute_ms=90.0)) == []


def test_records_that_begin_again_are_not_mixed_with_the_older_ones() -> None:
    run = Run()
    run.go(30, slow("worker-1", compute_ms=59.0))
    run.second = 0  # from an older checkpoint, or the clock was set back
    assert run.go(20) == []
    assert [found.cause for found in run.go(30)] == ["none"]


def test_what_is_no_number_is_passed_over() -> None:
    watch = Stragglers(dict.fromkeys(["worker-0", "worker-1"], "host"))
    odd: Any = {"phase": "training", "t": "NaN", "step": 1}
    for second in range(60):
        for task in ("worker-0", "worker-1"):
            parts: Any = {"input_ms": "NaN", "compute_ms": None, "exchange_ms": True}
            record: Any = {"phase": "training", "t": second, "step": second, "step_time": parts}
            watch.add_record(task, record)
            watch.add_record(task, odd)
            watch.add_reading(task, {"t": "NaN"})
    assert watch.finding() is None


def test_an_exchange_that_becomes_slow_is_of_nobody() -> None:
    run = Run()
    assert run.go(40, transfer=10.0) == []
    facts = {task: {"tcp_sent": 1000, "tcp_resent": 1} for task in run.tasks}
    facts["worker-2"]["tcp_resent"] = 40
    run.go(25, transfer=10.0, facts=facts)
    told, *again = run.go(60, transfer=60.0, facts=facts)
    assert (told.task, told.host, told.cause) == (None, None, "network")
    assert [found.cause for found in again] in ([], ["network"])  # at most once more
    assert "no rank computes longer: the network is slow, or hosts are busy" in told.text
    assert "the host of worker-2 (host-2) retransmitted 4.0% of its TCP segments" in told.text
    [over] = run.go(60, transfer=10.0, facts=facts)
    assert over.text == "the exchange of gradients is back to its former speed"


# ---------------------------------------------------------------------------------- by hosts

GPU = {"index": 0, "uuid": "GPU-1", "mhz": 1980, "max_mhz": 1980, "busy": 90, "reasons": 0}
#: Additional facts of the slow rank's host, and the text of the finding.
EVIDENCE: dict[str, tuple[dict[str, Any], str]] = {
    "quota": (
        {"quota_cores": 0.5, "periods": 10, "throttled": 8},
        "the CPU limit of its control group (0.5 cores) was used up in 80% of the time slices",
    ),
    "heat": ({"thermal": 2, "mhz": 3100}, "its processors were thermally throttled 40 times"),
    "clock": ({"mhz": 1200}, "its cores run at 1200 MHz, the others' at 3000"),
    "stopped": ({"stopped": True}, "it was stopped by a signal in 21 of 21 samples"),
    "steal": ({"steal_s": 0.8}, "the hypervisor gave 0.8 of its 4 cores to other machines"),
    "others": (
        {"cpu_s": 0.5, "wait_s": 0.5, "busy_s": 3.9, "nice": 10},
        "its threads spent 50% of their runnable time waiting for a core, while other "
        "processes used 3.4 of 4 cores, at nice 10",
    ),
    "gpu-heat": (
        {"gpus": [{**GPU, "mhz": 345, "reasons": 0x40}]},
        "the clock of GPU 0 is throttled by heat or its power supply: 345 MHz of 1980, others 1980",
    ),
    "gpu-power": (
        {"gpus": [{**GPU, "mhz": 1200, "reasons": 0x4}]},
        "the clock of GPU 0 is throttled by its power limit: 1200 MHz of 1980, others 1980",
    ),
}
COMMON: dict[str, Any] = {"mhz": 3000, "gpus": [GPU], "periods": 10, "throttled": 0, "thermal": 0}


@pytest.mark.parametrize(("own", "text"), EVIDENCE.values(), ids=EVIDENCE)
def test_what_the_host_says_is_the_evidence(own: dict[str, Any], text: str) -> None:
    facts = {f"worker-{index}": COMMON for index in range(3)}
    facts["worker-1"] = {**COMMON, **own}
    [found] = Run().go(40, slow("worker-1", compute_ms=39.0), facts=facts)
    assert found.evidence == [text]
    assert found.text.endswith(f"computing: {text}")

    # If a script reports no times, only the hosts' facts are known.
    run = Run()
    [alone] = run.go(40, facts=facts, times=False)
    assert (alone.task, alone.cause, alone.factor) == ("worker-1", "cpu", None)
    begun = re.sub(r"\d+", "N", f"worker-1 (host-1) may be the slowest rank: {text}; its script")
    assert re.sub(r"\d+", "N", alone.text).startswith(begun)
    [over] = run.go(40, facts=dict.fromkeys(run.tasks, COMMON), times=False)
    assert over.text == "worker-1 (host-1): its processors are no longer slowed down"


def test_what_holds_back_all_alike_is_no_evidence_against_one() -> None:
    waiting = {"cpu_s": 0.5, "wait_s": 0.5, "busy_s": 3.9, "mhz": 1000}
    facts = {f"worker-{index}": waiting for index in range(3)}
    [found] = Run().go(40, slow("worker-1", compute_ms=39.0), facts=facts)
    assert found.evidence == []
    assert Run().go(60, facts=facts, times=False) == []


@pytest.mark.parametrize("idle", [{"cpu_s": 0.0, "wait_s": 0.001}, {"cpu_s": 0.02, "mhz": 800}])
def test_an_idle_rank_is_not_slowed_down(idle: dict[str, Any]) -> None:
    """An idle core has a low clock, and a thread that hardly runs may wait as long as it runs."""
    facts = {"worker-0": {"mhz": 3000}, "worker-1": {"mhz": 3000, **idle}}
    assert Run(2).go(60, facts=facts, times=False) == []


def test_ranks_of_one_machine_are_no_foreign_processes() -> None:
    own = {"cpu_s": 0.9, "wait_s": 0.02, "busy_s": 2.0, "machine": "one"}
    facts = {"worker-0": own, "worker-1": {**own, "wait_s": 0.9}}
    [found] = Run(2).go(40, slow("worker-1", compute_ms=39.0), facts=facts)
    assert found.evidence == ["its threads spent 50% of their runnable time waiting for a core"]


class Counting(dict[str, Any]):
    """A reading that counts how often a value of any reading is read."""

    reads = 0

    def get(self, name: str, default: Any = None) -> Any:
        Counting.reads += 1
        return super().get(name, default)


GPU = {"index": 0, "mhz": 1500, "max_mhz": 1980, "reasons": 0x4}


@pytest.mark.parametrize(
    ("usual", "of_one"),
    [
        ({"mhz": 3000}, {}),
        ({"mhz": 3000}, {"mhz": 900, "wait_s": 1.0}),
        ({"mhz": 3000}, {"mhz": 9000}),
        ({"wait_s": 1.0}, {"wait_s": 0.01}),  # all but one wait for cores
        ({"gpus": [GPU] * 2}, {"gpus": [{**GPU, "mhz": 1900}]}),  # all are at their power limit
    ],
)
def test_the_work_of_a_comparison_grows_with_the_number_of_ranks_only(
    usual: dict[str, Any], of_one: dict[str, Any]
) -> None:
    work = []
    for ranks in (50, 200):
        run = Run(ranks)
        facts = dict.fromkeys(run.tasks, usual)
        run.go(30, facts={**facts, "worker-3": {**usual, **of_one}}, times=False)
        for readings in run.watch._readings.values():
            readings.extend([Counting(readings.pop())])
        Counting.reads = 0
        run.watch.finding()
        work.append(Counting.reads)
    assert 0 < work[1] <= 4.5 * work[0]


@given(
    st.lists(st.lists(st.integers(0, 4).map(float), max_size=5), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_the_median_of_all_others(values: list[list[float]], chosen: int) -> None:
    by_task = {str(number): own for number, own in enumerate(values)}
    task = str(chosen % len(values))
    others = [value for name, own in by_task.items() if name != task for value in own]
    expected = statistics.median(others) if others else None
    assert _Pooled(by_task).median_of_others(task) == expected
