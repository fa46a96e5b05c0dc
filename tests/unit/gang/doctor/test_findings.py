"""The doctor's pairs of hosts, and its findings from the hosts' facts."""

from __future__ import annotations

import copy
import itertools
import json
import shlex
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.gang import suggestions
from train.gang.doctor import PARTS, findings
from train.gang.doctor.doctor_records import Finding
from train.gang.suitability_rules import HostFault
from train.host.checkup import _GPU_FIELDS

#: The report of train/host/checkup.py about a healthy host, without its name and addresses.
CHECKUP = REPOSITORY / "tests/data/checkup.json"
RECORDED = REPOSITORY / "tests/data/gpus.txt"
GPUS = dict(line.split(": ") for line in RECORDED.read_text().splitlines() if line[0] != "#")
HEALTHY = [generation for generation in GPUS if generation != "Hopper, braked"]


def gpu(generation: str, **changed: str) -> dict[str, str]:
    """Return a GPU as a host reports it; the argument ``clocks_sm`` sets ``clocks.sm``."""
    values = GPUS[generation].split(", ")
    found = dict(zip(_GPU_FIELDS, values, strict=True))
    known = {name.replace(".", "_"): name for name in found}
    found.update({known[name]: value for name, value in changed.items()})
    return {name: value for name, value in found.items() if value != "?"}


def examined(count: int, rate: float = 940.0, **everywhere: Any) -> Any:
    """Return the results for hosts that are healthy, except for the given properties."""
    hosts = [f"host-{n}" for n in range(count)]
    addresses = {host: f"192.0.2.{n + 1}" for n, host in enumerate(hosts)}
    seen: Any = {
        host: {
            **json.loads(CHECKUP.read_text()),
            "machine": host,
            "resolved": {address: [address] for address in addresses.values()},
            "own": [addresses[host]],
            "interfaces": {"eth0": {"addresses": [addresses[host]], "speed": 1000, "mtu": 1500}},
            **copy.deepcopy(everywhere),
        }
        for host in hosts
    }
    links: Any = {
        host: {peer: {"out": "open", "sent_mbit": rate} for peer in hosts if peer != host}
        for host in hosts
    }
    for host, peer in itertools.combinations(hosts, 2):
        links[host][peer]["least_rtt_ms"] = 0.2  # one of the two hosts measures it
    logins = {host: {"seconds": 0.2, "clock": 0.0, "text": ""} for host in hosts}
    found = {"checkups": seen, "logins": logins, "links": links, "addresses": addresses}
    return {**found, "parts": list(PARTS), "unreachable": {}, "failed": {}, "remedies": {}}


def bad(found: Any) -> list[tuple[str, str, str]]:
    judged = [(f["severity"], f["what"], f["where"]) for f in findings.judge(found)]
    return [one for one in judged if one[0] != "info"]


def test_healthy_hosts_have_no_findings() -> None:
    for count in (1, 2, 3, 8):
        assert findings.judge(examined(count)) == []


@pytest.mark.parametrize(
    ("framework", "changed", "what"),
    [
        ("jax", {"packages": {"python": "3.11", "jax": "0.10.2"}}, "differs-jax"),
        ("jax", {"packages": {"python": "3.11"}, "imported": {}}, "no-jax"),
        ("jax", {"imported": {"error": "ImportError"}}, "jax-broken"),
        ("torch", {"packages": {"python": "3.11"}, "imported": {}}, "no-torch"),
        ("none", {"packages": {"python": "3.11"}, "imported": {}}, ""),
        ("none", {"python_error": "there is no interpreter"}, "no-environment"),
    ],
)
def test_the_environment_of_another_framework(
    framework: str, changed: dict[str, Any], what: str
) -> None:
    found = examined(3)
    for checkup in found["checkups"].values():
        checkup["framework"] = framework
        checkup["packages"][framework] = "1.0"
        checkup["imported"] = {"version": "1.0", "seconds": 2.0}
    assert bad(found) == []
    found["checkups"]["host-1"] |= changed
    assert [one[1] for one in bad(found) if one[0] == "fail"] == [*filter(None, [what])]


@pytest.mark.parametrize(
    ("changed", "severity", "what"),
    [
        ({"python_error": "there is no interpreter"}, "fail", "no-environment"),
        ({"packages": {"python": "3.11"}, "imported": {}}, "fail", "no-tensorflow"),
        ({"imported": {"error": "ImportError"}}, "fail", "tensorflow-broken"),
        ({"write_error": "/mnt: Read-only file system"}, "fail", "not-writable"),
        ({"write_error": "/mnt: No space left on device"}, "fail", "disk-full"),
        ({"free": 100}, "fail", "disk-full"),
        ({"shm": 64, "gpus": [gpu(HEALTHY[0])]}, "warning", "small-shm"),
        ({"nofile": 256}, "warning", "few-files"),
        ({"memory_limit": 1024}, "warning", "memory-limit"),
        ({"usable_cores": 0.5}, "warning", "cpu-limit"),
        ({"proxy": "http_proxy"}, "warning", "proxy"),
        ({"firewall_off": True}, "warning", "firewall-off"),
        ({"busy_cores": 4.0}, "warning", "busy"),
        ({"steal": 0.4}, "warning", "stolen"),
        ({"imported": {"version": "2.21.0", "gflops": 9.0}}, "warning", "slow-compute"),
        ({"port_holder": "pid 9 (x)", "spare_port": 12346}, "fail", "port-taken"),
        ({"leftovers": ["pid 9 of a worker-0 (x)"]}, "warning", "leftovers"),
        ({"gpu_error": "nvidia-smi failed: no driver"}, "fail", "driver"),
        ({"xid": ["NVRM: Xid (PCI:0000:3b:00): 79"]}, "warning", "gpu-xid"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_cause_is_one_finding_of_its_host(changed: Any, severity: str, what: str) -> None:
    found = examined(3)
    found["checkups"]["host-1"].update(changed)
    assert bad(found) == [(severity, what, "host-1")]
    assert all(one["remedy"] for one in findings.judge(found))


def test_what_rules_a_host_out_explains_what_it_lacks() -> None:
    faults = [HostFault(kind, "sentence", "expected", "remedy") for kind in ("no-space", "noexec")]
    absent: dict[str, Any] = {"python_error": "there is no interpreter", "packages": {}}
    broken: dict[str, Any] = {"error": "failed to map segment"}
    for changed, expected in (
        ({**absent, "imported": {}, "free": 5}, ["no-space", "noexec"]),
        ({"imported": broken}, ["noexec"]),
        ({"imported": {}}, ["noexec"]),  # the import was not tried
        ({}, []),  # it works
    ):
        found = examined(3)
        found["checkups"]["host-1"].update(changed)
        judged = findings.judge(found, {"host-1": faults})
        assert [one["what"] for one in judged if one["severity"] == "fail"] == expected


def test_a_port_of_a_job_or_of_its_leftover_is_not_taken_by_a_stranger() -> None:
    found = examined(3)
    found["checkups"]["host-0"].update(port_holder="pid 9 (x)", port_job=True, spare_port=12346)
    left = ["pid 9 of a worker-0 (x)"]
    found["checkups"]["host-1"].update(port_holder="pid 9 (x)", leftovers=left, spare_port=12346)
    # The other port need not be open.
    found["links"]["host-2"]["host-0"]["out"] = "timeout"
    assert bad(found) == [("fail", "leftovers", "host-1")]


def test_the_clock_and_the_login() -> None:
    found = examined(3)
    found["logins"]["host-1"].update(clock=-90.0)
    found["logins"]["host-2"].update(text="Welcome")
    assert bad(found) == [("warning", "clock", "host-1"), ("warning", "noisy-login", "host-2")]
    # A slow login gives only a rough time.
    found["logins"]["host-1"].update(clock=-5.0, seconds=9.0)
    assert bad(found) == [("warning", "noisy-login", "host-2")]


@pytest.mark.parametrize(
    ("what", "severity", "changed"),
    [
        ("port-blocked", "fail", {"out": "timeout"}),
        ("wrong-address", "fail", {"met": "host-3"}),
        ("mtu", "fail", {"sent_mbit": 0.0}),
        ("loss", "warning", {"resent": 0.01, "sent_mbit": 300.0}),
        ("latency", "warning", {"least_rtt_ms": 200.0, "sent_mbit": 5.0}),
        ("slow", "warning", {"sent_mbit": 9.0, "resent": 0.05}),
    ],
)
def test_a_problem_is_of_the_path_the_host_or_all(what: str, severity: str, changed: Any) -> None:
    def plant(*pairs: tuple[int, int]) -> list[tuple[str, str, str]]:
        found = examined(4)
        for host, peer in pairs:
            found["links"][f"host-{host}"][f"host-{peer}"].update(changed)
        return bad(found)

    assert plant((0, 1)) == [(severity, what, "host-0 -> host-1")]
    assert plant((0, 1), (1, 0)) == [(severity, what, "host-0 <-> host-1")]
    assert plant((0, 2), (1, 2), (3, 2)) == [(severity, what, "host-2")]
    assert plant((2, 0), (2, 1), (2, 3)) == [(severity, what, "host-2")]
    both = [pair for n in (0, 1, 3) for pair in ((n, 2), (2, n))]
    assert plant(*both) == [(severity, what, "host-2")]
    every = [(host, peer) for host in range(4) for peer in range(4) if host != peer]
    assert plant(*every) == [(severity, what, "all paths")]


def test_a_slow_host_of_three_is_the_slow_one() -> None:
    found = examined(3, rate=9000.0)
    for host, peer in [(0, 1), (0, 2), (1, 0), (2, 0)]:
        found["links"][f"host-{host}"][f"host-{peer}"]["sent_mbit"] = 900.0
    assert bad(found) == [("warning", "slow", "host-0")]
    assert "900 Mbit/s, others 9000" in findings.judge(found)[0]["found"]
    # No finding if its cores were busy with other processes.
    for link in (link for links in found["links"].values() for link in links.values()):
        link["waited"] = 0.5
    assert bad(found) == []


def test_the_other_interface_is_the_remedy() -> None:
    found = examined(3, rate=9000.0)
    faster = {"addresses": ["198.51.100.1"], "speed": 10_000, "mtu": 1500}
    found["checkups"]["host-0"]["interfaces"]["eth1"] = faster
    for peer in (1, 2):
        found["links"][f"host-{peer}"]["host-0"]["sent_mbit"] = 90.0
    (one,) = findings.judge(found)
    assert (one["what"], one["where"]) == ("slow", "host-0")
    assert "set train_job_address of host-0 to 198.51.100.1" in one["remedy"]


def test_names() -> None:
    found = examined(3)
    found["addresses"]["host-1"] = "one"
    for host, there in (("host-0", ["192.0.2.2"]), ("host-1", ["127.0.1.1"]), ("host-2", [])):
        found["checkups"][host]["resolved"]["one"] = there
    # Its consequences are not reported.
    found["links"]["host-2"]["host-1"] = {"out": "unresolvable"}
    assert bad(found) == [
        ("fail", "unresolved", "host-2 -> host-1"),
        ("warning", "loopback", "host-1"),
    ]
    for host in found["checkups"]:
        found["checkups"][host]["resolved"]["one"] = ["127.0.0.1"]
        found["links"][host].get("host-1", {})["met"] = host
    assert bad(found) == [("fail", "loopback", "host-1")]
    # This is right if all hosts are one machine.
    for checkup in found["checkups"].values():
        checkup["machine"] = "one"
    found["links"] = examined(3)["links"]
    assert bad(found) == []


def test_the_odd_one_out() -> None:
    found = examined(3)
    found["checkups"]["host-2"]["packages"] = {"tensorflow": "2.20.0", "python": "3.12"}
    assert bad(found) == [("fail", "differs-tensorflow", "host-2")]
    two = examined(2)
    two["checkups"]["host-1"]["packages"]["tensorflow"] = "2.20.0"
    assert bad(two) == [("fail", "differs-tensorflow", "all hosts")]
    found = examined(4)
    found["checkups"]["host-3"]["interfaces"]["eth0"].update(speed=100, mtu=9000)
    found["checkups"]["host-0"].update(kernel="5.10.0")
    assert [(one["severity"], one["what"], one["where"]) for one in findings.judge(found)] == [
        ("warning", "differs-mtu", "host-3"),
        ("warning", "differs-network-speed", "host-3"),
        ("info", "differs-kernel", "host-0"),
    ]


@pytest.mark.parametrize("generation", HEALTHY)
def test_a_gpu_of_each_generation(generation: str) -> None:
    cuda = "12.5.1" if float(gpu(generation)["driver_version"][:3]) >= 525 else "11.8"
    imported = {"version": "2.21.0", "gpus": 1, "cuda": cuda}

    def judge(**changed: str) -> list[tuple[str, str, str]]:
        found = examined(3, gpus=[gpu(generation)], imported=imported)
        found["checkups"]["host-1"]["gpus"] = [gpu(generation, **changed)]
        return bad(found)

    def throttled(bits: str) -> list[tuple[str, str, str]]:
        return judge(clocks_throttle_reasons_active=bits, clocks_event_reasons_active=bits)

    for bits in ("0x0000000000000008", "0x0000000000000020", "0x00000000000000c0"):
        assert throttled(bits) == [("warning", "gpu-throttled", "host-1 GPU 0")]
    # Idle or at its power limit, or the driver does not report the reason.
    for bits in ("0x0000000000000005", "[N/A]"):
        assert throttled(bits) == []
    for healthy in ({}, {"power_limit": "[N/A]"}, {"pcie_link_width_current": "8"}):
        assert judge(**healthy) == []
    errors = {"ecc_errors_uncorrected_volatile_total": "3"}
    assert judge(**errors) == [("fail", "gpu-ecc", "host-1 GPU 0")]
    assert judge(pcie_link_width_current="4") == [("warning", "gpu-lanes", "host-1 GPU 0")]
    assert judge(driver_version="599.1") == [("warning", "differs-driver", "host-1")]
    assert ("fail", "driver-old", "host-1") in judge(driver_version="440.33.01")
    for broken in ({"pstate": "[GPU requires reset]"}, {"gpu_recovery_action": "Drain and Reset"}):
        assert judge(**broken) == [("fail", "gpu-reset", "host-1 GPU 0")]


def test_a_gpu_whose_power_supply_brakes_it() -> None:
    found = examined(3, gpus=[gpu("Hopper, braked")])
    assert bad(found) == [("warning", "gpu-throttled", f"host-{n} GPU 0") for n in range(3)]


def test_gpus_that_tensorflow_does_not_see() -> None:
    imported = {"version": "2.21.0", "gpus": 1, "cuda": "12.5.1"}
    found = examined(3, gpus=[gpu("Ampere")], imported=imported)
    found["checkups"]["host-1"]["imported"]["gpus"] = 0
    found["checkups"]["host-2"]["gpus"] = [gpu("Hopper")]
    assert bad(found) == [
        ("warning", "differs-driver", "host-2"),
        ("warning", "differs-gpus", "host-2"),
        ("warning", "gpu-unseen", "host-1"),
    ]
    # A build without CUDA sees no GPUs.
    found["checkups"]["host-1"]["imported"]["cuda"] = ""
    assert ("warning", "gpu-unseen", "host-1") not in bad(found)


def test_a_small_shared_memory_does_not_matter_without_a_gpu() -> None:
    assert findings.judge(examined(2, shm=64, gpus=[])) == []


@pytest.mark.parametrize(("place", "what"), [("failed", "no-answer"), ("unreachable",) * 2])
def test_a_host_that_was_not_examined_would_fail(place: str, what: str) -> None:
    found = examined(2)
    found[place] = {"host-2": "timed out"}
    assert bad(found) == [("fail", what, "host-2")]


def test_parts_are_judged_alone() -> None:
    found = examined(3)
    found["checkups"]["host-0"].update(nofile=256)
    found["checkups"]["host-1"]["packages"]["tensorflow"] = "2.20.0"
    found["links"]["host-0"]["host-1"]["out"] = "timeout"
    whats = {"hosts": "few-files", "pairs": "port-blocked", "alike": "differs-tensorflow"}
    for part, what in whats.items():
        assert [one[1] for one in bad({**found, "parts": [part]})] == [what]


def test_text_of_a_host_is_no_part_of_a_command_or_a_line_of_its_own() -> None:
    found = examined(2)
    checkup = found["checkups"]["host-1"]
    checkup["leftovers"] = ["pid 70 of night worker-0 (python3 -c \npid 1 of night)"]
    checkup.update(root="/x; reboot", write_error="/x: Read-only file system")
    checkup["gpus"] = [gpu("Hopper", power_limit="100.00", index="0; rm -r ~")]
    said = findings.judge(found)
    reach = {"host-1": {"ansible_host": "192.0.2.1"}}
    remedies = {one["what"]: suggestions.filled(one["remedy"], reach) for one in said}
    assert remedies["leftovers"] == "ssh 192.0.2.1 'kill 70'"
    _, _, line = shlex.split(remedies["not-writable"])
    assert line == "ls -ld '/x; reboot'; findmnt -T '/x; reboot'"
    assert "rm" not in remedies["gpu-power"]
    assert "\\n" not in json.dumps(said)


def test_an_environment_on_top_of_another_one_has_tensorflow() -> None:
    found = examined(2)
    checkup = found["checkups"]["host-1"]
    checkup.update(packages={"python": "3.11"}, imported={"version": "2.21.0"})
    assert bad(found) == []


def test_findings_that_are_equal_but_for_their_hosts_are_one() -> None:
    def finding(host: str, found: str, remedy: str) -> Finding:
        return Finding(
            severity="fail",
            what="no-tensorflow",
            where=host,
            found=found,
            expected="an environment",
            remedy=remedy,
        )

    setup = "ansible-playbook playbooks/setup.yml --limit {} --tags tensorflow"
    single = [finding(f"host-{n}", "none", setup.format(f"host-{n}")) for n in range(4)]
    single.append(finding("host-9", "a broken one", setup.format("host-9")))
    merged = findings.merged(single)
    assert [one["where"] for one in merged] == ["host-0, host-1 and 2 more", "host-9"]
    assert merged[0]["remedy"] == setup.format("host-0,host-1,host-2,host-3")
    assert merged[1] == single[-1]
