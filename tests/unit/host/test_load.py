"""The processors of a host, read from trees like /proc and /sys, and from this host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpus import Machine
from train.host import load, processes

TICKS = os.sysconf("SC_CLK_TCK")


class Host:
    """A machine that is simulated by files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.setattr(processes, "PROC", str(root / "proc"))
        monkeypatch.setattr(load, "SYS", str(root / "sys"))
        self._groups: dict[int, int] = {}
        monkeypatch.setattr(os, "getpgid", self._groups.__getitem__)
        self.write("proc/stat", "cpu  100 20 30 9000 5 6 7 80 0 0\ncpu0 1\ncpu1 2\nintr 1\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self,
        pid: int,
        group: int,
        *,
        state: str = "S",
        ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
        nice: int = 0,
        core: int = 0,
        thread: int | None = None,
        waited_ns: int = 0,
    ) -> None:
        fields = ["0"] * 50
        fields[0], fields[2], fields[16], fields[36] = state, str(group), str(nice), str(core)
        fields[11:15] = map(str, ticks)
        text = f"{pid} (a b) c) {' '.join(fields)}\n"
        if thread is None:
            self._groups[pid] = group
            self.write(f"proc/{pid}/stat", text)
        task = f"proc/{pid}/task/{thread or pid}"
        self.write(f"{task}/stat", text)
        self.write(f"{task}/schedstat", f"5 {waited_ns} 7\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    processes.boot_id.cache_clear()
    yield Host(tmp_path, monkeypatch)
    processes.boot_id.cache_clear()


def test_the_process_group_counts(host: Host) -> None:
    host.process(50, 50, ticks=(100, 50, 25, 25), waited_ns=10**9, nice=5)
    host.process(50, 50, thread=51, state="R", core=3, waited_ns=2 * 10**9, nice=5)
    host.process(60, 50, ticks=(100, 0, 0, 0), waited_ns=10**9, nice=5)
    host.process(61, 50, state="Z", ticks=(9999, 0, 0, 0))
    host.process(70, 70, ticks=(9999, 0, 0, 0))
    host.write("proc/50/status", "Name:\tx\nCpus_allowed_list:\t0-3,8,10-11\n")
    host.write("proc/sys/kernel/random/boot_id", "of-this-start\n")
    for core, mhz in ((0, 900_000), (3, 2_800_000)):
        folder = f"sys/devices/system/cpu/cpu{core}"
        host.write(f"{folder}/cpufreq/scaling_cur_freq", f"{mhz}\n")
        host.write(f"{folder}/cpufreq/cpuinfo_max_freq", "3500000\n")
        host.write(f"{folder}/thermal_throttle/core_throttle_count", "2\n")
        host.write(f"{folder}/thermal_throttle/package_throttle_count", "10\n")
    host.write("proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\n")
    host.write("proc/50/net/snmp", "Ip: A\nIp: 1\nTcp: OutSegs RetransSegs\nTcp: 900 30\n")
    found = load.facts(50)
    assert 0 < found.pop("t") <= time.monotonic()
    assert found == {
        "machine": "of-this-start",
        "cpu_s": round(300 / TICKS, 2),
        "wait_s": 4.0,
        "stopped": False,
        "nice": 5,
        "cores": 7,
        "mhz": 2800,
        "max_mhz": 3500,
        "busy_s": round(163 / TICKS, 2),
        "steal_s": round(80 / TICKS, 2),
        "all_cores": 2,
        "cpu_pressure": 12.5,
        "thermal": 14,
        "tcp_sent": 900,
        "tcp_resent": 30,
    }


def test_what_a_host_does_not_count_is_not_there(host: Host) -> None:
    assert load.facts(50) == {}
    host.process(50, 50, state="T")
    host.write("proc/stat", "nothing that is known\n")
    host.write("proc/50/net/snmp", "Tcp: A B\n")
    (host.root / "proc/50/task/50/schedstat").unlink()
    found = load.facts(50)
    assert sorted(found) == ["cpu_s", "nice", "stopped", "t"]
    assert found["stopped"] is True


STAT = "usage_usec 5\nnr_periods 100\nnr_throttled 40\nthrottled_usec 9\n"
LIMITED = {"quota_cores": 0.5, "periods": 100, "throttled": 40}


def group(folder: str, quota: str = "50000", stat: str = STAT) -> dict[str, str]:
    """Return the files of a control group of version 2, or of version 1 for one below ``cpu``."""
    files = {"cpu.max": f"{quota} 100000\n"}
    if folder.startswith("cpu"):
        files = {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"}
    return {f"{folder}/{name}": text for name, text in {**files, "cpu.stat": stat}.items()}


#: Control groups of version 2 and 1: a limit of the group itself, of a parent, in a container.
V1 = "9:name=systemd:/x\n4:cpuset:/x\n3:cpu,cpuacct:/docker/1\n0::/\n"
UNUSED = "nr_periods 0\nnr_throttled 0\n"
GROUPS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "v2": ("0::/a/b\n", group("a/b"), LIMITED),
    "v2-above": ("0::/a/b\n", {**group("a/b", "max", UNUSED), **group("a")}, LIMITED),
    "v2-container": ("0::/../x\n", group("."), LIMITED),
    "v2-none": ("0::/a\n", group("a", "max"), {}),
    "v1": (V1, group("cpu,cpuacct/docker/1"), LIMITED),
    "v1-container": ("3:cpuacct,cpu:/docker/1\n", group("cpu"), LIMITED),
    "v1-none": ("1:cpu:/\n0::/\n", group("cpu", "-1"), {}),
    "changed": ("0::/a\n", group("a", stat="other 1\n"), {}),
}


@pytest.mark.parametrize(("line", "files", "expected"), GROUPS.values(), ids=GROUPS)
def test_the_limit_of_the_control_group(host: Host, line: str, files: Any, expected: Any) -> None:
    host.process(50, 50)
    host.write("proc/50/cgroup", line)
    for name, text in files.items():
        host.write(f"sys/fs/cgroup/{name}", text)
    found = load.facts(50)
    assert {name: value for name, value in found.items() if name in LIMITED} == expected
    assert "busy_s" in found


# ---------------------------------------------------------------------------------- GPUs

#: A fake nvidia-smi that logs each call.
SMI = """#!/bin/sh
echo "$1" >> {log}
old=", 0x0"
{before}
echo "0, GPU-a, 345, 1980, 97, 0x0000000000000048$old"
echo "1, GPU-b, 1980, 1980, [N/A], 0x0000000000000000$old"
echo "2, GPU-c, [N/A], [N/A], 5, 0x0000000000000000$old"
"""
NEW = """case "$1" in *throttle*)
  echo 'Field "clocks_throttle_reasons.active" is not a valid field to query.'; exit 2;;
esac
old=
"""
NO_CLOCKS = """case "$1" in *clocks.max.sm*)
  echo 'Field "clocks.max.sm" is not a valid field to query.'; exit 2;;
esac
echo "0, GPU-a, 345, 97, 0x0000000000000048, 0x0"
exit
"""


@pytest.fixture
def smi(host: Host, machine: Machine) -> Any:
    """Return a rank with a GPU, and a function that installs nvidia-smi and returns its log."""
    host.process(50, 50)
    fd = host.root / "proc/50/fd"
    fd.mkdir()
    (fd / "3").symlink_to("/dev/nvidia0")
    machine.has(1)

    def install(before: str = "") -> Path:
        (machine.bin / "nvidia-smi").write_text(SMI.format(log=machine.calls, before=before))
        return machine.calls

    return install


def ask(host: Host) -> list[load.GpuLoad] | None:
    return load.facts(50, str(host.root)).get("gpus")


def age(host: Host, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(host.root / load.GPU_FILE, (then, then))


@pytest.mark.parametrize("before", ["", NEW])
def test_gpus_are_asked_for_now_and_then(host: Host, smi: Any, before: str) -> None:
    log = smi(before)
    first = {"index": 0, "uuid": "GPU-a", "mhz": 345, "max_mhz": 1980, "busy": 97, "reasons": 0x48}
    second = {**first, "index": 1, "uuid": "GPU-b", "mhz": 1980, "busy": None, "reasons": 0}
    assert ask(host) == ask(host) == [first, second]
    questions = 2 if before else 1
    assert len(log.read_text().splitlines()) == questions
    age(host, load.GPU_EVERY_S + 1)
    assert ask(host) == [first, second]
    assert len(log.read_text().splitlines()) == 2 * questions
    assert "gpus" not in load.facts(50)

    for visible, expected in (("GPU-b", [second]), ("0", [first]), ("-1", None), ("MIG-x", None)):
        host.write("proc/50/environ", f"A=1\0CUDA_VISIBLE_DEVICES={visible}\0")
        assert ask(host) == expected
    (host.root / "proc/50/fd/3").unlink()
    host.write("proc/50/environ", "A=1\0")
    assert ask(host) is None


def test_a_field_that_the_driver_does_not_know_moves_no_other(host: Host, smi: Any) -> None:
    smi(NO_CLOCKS)
    assert ask(host) is None


@pytest.mark.parametrize("before", ["exec sleep 60", "exit 9"])
def test_an_nvidia_smi_without_an_answer_is_left_alone_for_a_while(
    host: Host, smi: Any, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setattr(load, "GPU_LIMIT_S", 0.3)
    log = smi(before)
    began = time.monotonic()
    for age_s, questions in ((0.0, 1), (load.GPU_RETRY_S - 5, 1), (load.GPU_RETRY_S + 5, 2)):
        if age_s:
            age(host, age_s)
        assert ask(host) is None
        assert len(log.read_text().splitlines()) == questions
    assert time.monotonic() - began < 30


# ---------------------------------------------------------------------------------- this host


def test_a_process_of_this_host() -> None:
    first, end = load.facts(os.getpid()), time.process_time() + 0.2
    while time.process_time() < end:
        last = load.facts(os.getpid())
    assert last["t"] > first["t"]
    assert last["machine"] == first["machine"]
    assert last["cpu_s"] > first["cpu_s"] + 0.1
    assert last["busy_s"] > first["busy_s"] + 0.1
    assert 1 <= last["cores"] <= last["all_cores"] == os.cpu_count()
