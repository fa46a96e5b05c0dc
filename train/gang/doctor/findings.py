"""Judges the results of an examination: problems of hosts and paths, with remedies."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from train.gang.doctor.doctor_records import Examined, Finding
from train.gang.login_failures import names_of
from train.gang.suitability_rules import HostFault
from train.host import frameworks, probe
from train.host.checkup import Checkup
from train.host.links import Link
from train.host.suggested import suggest

#: Severities: a job would fail; it would be slow or end early; or only for information.
FAIL, WARNING, INFO = "fail", "warning", "info"
_ORDER = (FAIL, WARNING, INFO)

#: Limits for good values.
MAX_CLOCK_S = 2.0
MIN_SHM, MIN_FREE, MIN_NOFILE = 256, 1024, 4096
MIN_MEMORY = 2048
MAX_RTT_MS = 20.0
MAX_RESENT = 0.005
#: Mbit/s below which any path is slow, and the fractions of the usual speed below which a path or a
#: host is slow.
MIN_RATE, SLOW_PATH, SLOW = 100.0, 0.2, 0.5
#: If a transfer spent more than this share of its time waiting for a core, its rate means nothing.
MAX_WAITED = 0.3
#: Cores that other processes may use: this number, or this fraction of all cores.
BUSY, BUSY_PART = 0.5, 0.1
MAX_STEAL = 0.2
#: Bits of a TCP segment. Losses allow a certain rate. A rate below this fraction of it has another
#: cause.
_SEGMENT, _LOSS_PART = 11_584, 0.1
#: The oldest driver for each CUDA; see NVIDIA's "CUDA Compatibility".
_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}
_SETUP = suggest("setup")

Found = Iterator[Finding]


def _place_in_report(finding: Finding) -> tuple[int, str, str]:
    """Return the key that sorts findings, most severe first."""
    return _ORDER.index(finding["severity"]), finding["what"], finding["where"]


def judge(
    examined: Examined, unsuited: Mapping[str, Sequence[HostFault]] | None = None
) -> list[Finding]:
    """Return all findings, most severe first.

    Args:
        unsuited: why TensorFlow cannot be installed, by host.
    """
    findings = [
        _finding(FAIL, "unreachable", host, why, "", examined["remedies"].get(host, ""))
        for host, why in examined["unreachable"].items()
    ]
    findings += [
        _finding(FAIL, "no-answer", host, why, "an examined host", suggest("uptime", on=host))
        for host, why in examined["failed"].items()
    ]
    parts = examined["parts"]
    if "hosts" in parts:
        for host, checkup in examined["checkups"].items():
            faults = _explaining(checkup, (unsuited or {}).get(host, ()))
            for fault in faults:
                fields = fault.found, fault.expected, fault.remedy
                findings.append(_finding(FAIL, fault.kind, host, *fields))
            if not faults:
                findings += _environment(host, checkup)
            if not {fault.kind for fault in faults} & {"not-writable", "no-space", "obstacle"}:
                findings += _room(host, checkup)
            for rule in (_limits, _others, _surroundings, _gpus):
                findings += rule(host, checkup)
            findings += _login(host, examined)
    if "hosts" in parts or "pairs" in parts:
        findings += _paths(examined)
    if "alike" in parts:
        findings += _alike(examined)
    return sorted(findings, key=_place_in_report)


def _finding(
    severity: str, what: str, where: str, found: str, expected: str, remedy: str
) -> Finding:
    # One line each: text from a host must not add lines.
    found, expected, remedy = (" ".join(text.split()) for text in (found, expected, remedy))
    return Finding(
        severity=severity, what=what, where=where, found=found, expected=expected, remedy=remedy
    )


def _setup(host: str, tags: str, **more: str) -> str:
    return suggest("setup", hosts=host, tags=tags, **more)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in their hosts.

    The remedy is that of the first host, but ``--limit`` in it names all hosts.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in found:
        key = one["severity"], one["what"], one["found"], one["expected"]
        groups.setdefault(key, []).append(one)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[Finding]) -> Finding:
    first = group[0]
    hosts = [one["where"] for one in group]
    before, after = (shlex.quote(",".join(names)) for names in (hosts[:1], hosts))
    remedy = first["remedy"].replace(f"--limit {before} ", f"--limit {after} ")
    return Finding(**{**first, "where": names_of(hosts), "remedy": remedy})


# One host.


def _explaining(checkup: Checkup, faults: Iterable[HostFault]) -> list[HostFault]:
    """Return the faults that explain why a host has no working framework.

    If the framework works, return none. If it is installed but does not work, only its location can
    be a fault. If it is not installed, return all faults.
    """
    framework = checkup["framework"]
    measured = "gflops" if framework == frameworks.TENSORFLOW else "version"
    if measured in checkup["imported"] or framework == frameworks.NONE:
        return []
    if _framework_version(checkup):
        return [fault for fault in faults if fault.kind == "noexec"]
    return list(faults)


def _environment(host: str, checkup: Checkup) -> Found:
    setup, framework = _setup(host, "tensorflow"), checkup["framework"]
    name = frameworks.NAMES.get(framework, "Python")
    good = f"an environment with {name}"
    if framework == frameworks.TORCH:  # setup.yml does not install it
        setup = "install PyTorch on the host, and set train_job_python to its interpreter"
    if checkup["python_error"]:
        yield _finding(FAIL, "no-environment", host, checkup["python_error"], good, setup)
    elif framework == frameworks.NONE:
        return
    elif "python" in checkup["packages"] and not _framework_version(checkup):
        found = f"{name} is not installed for {checkup['python']}"
        yield _finding(FAIL, f"no-{framework}", host, found, good, setup)
    elif checkup["imported"].get("error"):
        found = f"{name} cannot be imported: {checkup['imported']['error']}"
        yield _finding(FAIL, f"{framework}-broken", host, found, "a successful import", setup)


def _framework_version(checkup: Checkup) -> str:
    """Return the version of the framework, or an empty string if it is missing or unknown."""
    known = checkup["packages"].get(checkup["framework"])
    return known or checkup["imported"].get("version", "")


def _version_of(framework: str) -> Callable[[Checkup], str]:
    """Return a function that returns the version of a framework, if jobs of a host use it."""
    return lambda checkup: _framework_version(checkup) if checkup["framework"] == framework else ""


def _room(host: str, checkup: Checkup) -> Found:
    if checkup["write_error"]:
        full = "No space" in checkup["write_error"]
        command = "disk-use" if full else "folder-rights"
        remedy = suggest(command, on=host, folder=checkup["root"])
        what = "disk-full" if full else "not-writable"
        yield _finding(FAIL, what, host, checkup["write_error"], "a writable folder", remedy)
    elif checkup["free"] < MIN_FREE:
        found = f"only {checkup['free']} MiB free at {checkup['root']}"
        remedy = suggest("clean", age="14d")
        yield _finding(FAIL, "disk-full", host, found, f"{MIN_FREE} MiB or more", remedy)


def _limits(host: str, checkup: Checkup) -> Found:
    if checkup["gpus"] and checkup["shm"] < MIN_SHM:  # only NCCL needs a lot
        found = f"/dev/shm has only {checkup['shm']} MiB"
        setup = _setup(host, "training_host", variable="training_host_shm_size_mb=1024")
        remedy = f"`{setup}`; if the host is a container, start it with a larger --shm-size"
        yield _finding(WARNING, "small-shm", host, found, f"{MIN_SHM} MiB or more for NCCL", remedy)
    if checkup["nofile"] < MIN_NOFILE:
        found = f"the limit on open files is {checkup['nofile']}"
        remedy = _setup(host, "training_host")
        yield _finding(WARNING, "few-files", host, found, f"{MIN_NOFILE} or more", remedy)
    if checkup["memory_limit"]:
        found = f"memory is limited to {checkup['memory_limit']} of {checkup['memory']} MiB"
        bad = WARNING if checkup["memory_limit"] < MIN_MEMORY else INFO
        remedy = "raise memory.max of the control group (systemd: MemoryMax, Docker: --memory)"
        yield _finding(bad, "memory-limit", host, found, "no limit", remedy)
    elif checkup["memory"] < MIN_MEMORY:
        found = f"the host has only {checkup['memory']} MiB of memory"
        yield _finding(
            WARNING, "little-memory", host, found, f"{MIN_MEMORY} MiB or more", "add memory"
        )
    if checkup["usable_cores"] < checkup["cores"]:
        found = f"processes are limited to {checkup['usable_cores']:g} of {checkup['cores']} cores"
        bad = WARNING if checkup["usable_cores"] < 1 else INFO
        remedy = "raise cpu.max of the control group (systemd: CPUQuota, Docker: --cpus)"
        yield _finding(bad, "cpu-limit", host, found, "all cores", remedy)


def _others(host: str, checkup: Checkup) -> Found:
    port, holder = checkup["port"], checkup["port_holder"]
    leftovers = checkup["leftovers"]
    pids = [
        found.group(1) for found in map(re.compile(r"pid ([0-9]{1,10}) ").match, leftovers) if found
    ]
    of_leftover = holder.split(" (")[0] in [f"pid {pid}" for pid in pids]
    if leftovers:
        found = f"processes left over from ended jobs ({len(pids)}): {leftovers[0]}"
        bad = WARNING
        if of_leftover:
            bad, found = FAIL, f"{found}; port {port} is in use by {holder}"
        remedy = suggest("kill", on=host, pids=" ".join(pids)) if pids else "end these processes"
        yield _finding(bad, "leftovers", host, found, "none", remedy)
    if holder and not of_leftover and not checkup["port_job"]:
        found = f"port {port} is in use by {holder}"
        remedy = f"end that process, or set another train_job_port for {host}"
        yield _finding(FAIL, "port-taken", host, found, "a free port", remedy)
    for lease in checkup["leases"]:
        found = f"another job was running during the measurements: the machine is {lease}"
        yield _finding(INFO, "in-use", host, found, "", suggest("list"))
    if checkup["busy_cores"] > max(BUSY, BUSY_PART * checkup["cores"]):
        found = (
            f"other processes use {checkup['busy_cores']:g} cores, mostly {checkup['busy_with']}"
        )
        remedy = suggest("processes", on=host)
        bad = INFO if checkup["leases"] else WARNING  # another user's job
        yield _finding(bad, "busy", host, found, "an idle host", remedy)
    if checkup["steal"] > MAX_STEAL:
        found = f"{checkup['steal']:.0%} of CPU time was stolen by other virtual machines"
        good = f"below {MAX_STEAL:.0%}"
        yield _finding(
            WARNING, "stolen", host, found, good, "contact the administrator of the hypervisor"
        )


def _surroundings(host: str, checkup: Checkup) -> Found:
    if checkup["proxy"]:
        found = f"{checkup['proxy']} is set in the login environment, and gRPC would use it"
        remedy = (
            "set no_proxy to the hosts' addresses; jobs of this launcher do not use the proxy "
            "in any case"
        )
        yield _finding(WARNING, "proxy", host, found, "no proxy between hosts", remedy)
    if checkup["firewall_off"]:
        found, setup = "the rules of the role firewall are not loaded", _setup(host, "firewall")
        yield _finding(WARNING, "firewall-off", host, found, "the rules are loaded", setup)


def _gpus(host: str, checkup: Checkup) -> Found:
    if checkup["gpu_error"]:
        remedy = suggest("gpus", on=host)
        yield _finding(FAIL, "driver", host, checkup["gpu_error"], "nvidia-smi works", remedy)
    for gpu in checkup["gpus"]:
        yield from _gpu(host, gpu)
    yield from _driver(host, checkup)
    for words in checkup["gpu_processes"]:
        remedy = "end that process, or choose other GPUs (train_job_gpus)"
        yield _finding(WARNING, "gpu-taken", host, f"a GPU is in use by {words}", "none", remedy)
    for line in checkup["xid"][-1:]:
        report = suggest("gpu-report", on=host)
        remedy = (
            f"look up the number in NVIDIA's list of XID errors; `{report}` shows the state of "
            "the GPUs"
        )
        yield _finding(WARNING, "gpu-xid", host, line, "no XID errors since boot", remedy)


def _gpu(host: str, gpu: Mapping[str, str]) -> Found:
    index = gpu.get("index", "")
    index = index if re.fullmatch(r"[0-9]{1,4}", index) else "?"
    where = f"{host} GPU {index}"
    now, most = _number(gpu, "clocks.sm"), _number(gpu, "clocks.max.sm")
    # NVML's bits: hardware slowdown (8), thermal (0x20, 0x40), power brake (0x80).
    reasons = _reasons(gpu)
    if reasons & 0xE8:
        found = f"its clock is throttled to {now:g} of {most:g} MHz (reasons {reasons:#x})"
        remedy = suggest("gpu-clocks", on=host)
        yield _finding(WARNING, "gpu-throttled", where, found, "its full clock", remedy)
    action = gpu.get("gpu_recovery_action", "None")
    broken = "[GPU requires reset]" in gpu.values()
    if broken or re.fullmatch(r"(Drain|Reset|Reboot).*", action):
        found = (
            "the GPU requires a reset" if broken else f"the driver recommends this action: {action}"
        )
        command = suggest("gpu-reset", on=host, index=index) if index != "?" else "reset it"
        remedy = f"`{command}`; if that fails, reboot {host}"
        yield _finding(FAIL, "gpu-reset", where, found, "a working GPU", remedy)
    errors = _number(gpu, "ecc.errors.uncorrected.volatile.total")
    if errors > 0:
        found = f"{errors:g} uncorrected memory errors since the driver was loaded"
        yield _finding(FAIL, "gpu-ecc", where, found, "none", suggest("gpu-ecc", on=host))
    width, lanes = _number(gpu, "pcie.link.width.current"), _number(gpu, "pcie.link.width.max")
    if 0 < width < lanes:
        found = f"it uses {width:g} of {lanes:g} PCIe lanes"
        # Many slots have half of a card's lanes, including those of cloud machines.
        bad = INFO if width == lanes / 2 else WARNING
        yield _finding(
            bad, "gpu-lanes", where, found, "all PCIe lanes of its slot", "reseat the card"
        )
    limit, usual = _number(gpu, "power.limit"), _number(gpu, "power.default_limit")
    if 0 < limit < usual:
        found = f"its power is limited to {limit:g} W"
        remedy = "raise its power limit"
        if index != "?" and usual < 100_000:
            remedy = suggest("gpu-power", on=host, index=index, watts=f"{usual:.0f}")
        yield _finding(INFO, "gpu-power", where, found, f"{usual:g} W", remedy)
    if gpu.get("persistence_mode") == "Disabled":
        remedy = suggest("gpu-persistence", on=host)
        found = "the driver is unloaded when not in use, which slows down every start"
        yield _finding(INFO, "gpu-persistence", where, found, "persistence mode is on", remedy)


def _driver(host: str, checkup: Checkup) -> Found:
    """Yield a finding if the driver is too old for TensorFlow's CUDA or TensorFlow finds no GPU."""
    runtime = re.search(r"nvidia_cuda_runtime_cu([0-9]+)", " ".join(checkup["packages"]))
    cuda = checkup["imported"].get("cuda") or (runtime.group(1) if runtime else "")
    major = re.match(r"[0-9]+", cuda)
    if not checkup["gpus"] or not major:
        return
    needed = _DRIVERS.get(int(major.group()), "")
    driver = checkup["gpus"][0].get("driver_version", "")
    remedy = _setup(host, "nvidia_driver")
    if needed and re.fullmatch(r"[0-9.]+", driver) and _version(driver) < _version(needed):
        found = f"driver {driver} is too old: TensorFlow is built for CUDA {cuda}"
        yield _finding(FAIL, "driver-old", host, found, f"{needed} or newer", remedy)
    elif checkup["imported"].get("gpus") == 0:
        found = f"nvidia-smi lists {len(checkup['gpus'])} GPUs, but TensorFlow finds none"
        remedy = _setup(host, "nvidia_driver,tensorflow")
        yield _finding(WARNING, "gpu-unseen", host, found, "the same", remedy)


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part]


def _number(gpu: Mapping[str, str], name: str) -> float:
    """Return a value from nvidia-smi, or 0 if the GPU lacks it."""
    try:
        return float(gpu.get(name, ""))
    except ValueError:
        return 0.0


def _reasons(gpu: Mapping[str, str]) -> int:
    """Return NVML's bits for the causes of a reduced clock, or 0 if unknown."""
    for name in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", gpu.get(name, "")):
            return int(gpu[name], 16)
    return 0


def _login(host: str, examined: Examined) -> Found:
    login = examined["logins"].get(host)
    if login is None:
        return
    if login["text"]:
        found = f"login shells print {login['text'].splitlines()[0][:80]!r}"
        remedy = f"on {host}, let ~/.bashrc and similar files print only if [ -t 1 ]"
        yield _finding(WARNING, "noisy-login", host, found, "nothing", remedy)
    if abs(login["clock"]) > MAX_CLOCK_S + login["seconds"] / 2:
        how = "fast" if login["clock"] > 0 else "slow"
        found = f"its clock is {abs(login['clock']):.1f} s {how}"
        good = f"within {MAX_CLOCK_S:g} s of this machine's clock"
        yield _finding(WARNING, "clock", host, found, good, _setup(host, "clock_sync"))


# Paths.

_Pair = tuple[str, str]
#: Findings by path. ``_gather`` decides which paths or hosts they name.
_Problems = Mapping[_Pair, Finding]


def _paths(examined: Examined) -> Found:
    """Yield the problems of paths. Each cause is reported once.

    A problem that all paths of a host share is reported for the host. A problem that results from
    another problem of the same path is not reported.
    """
    unresolved, loopback, known = _names(examined)
    yield from _gather(unresolved, known)
    yield from _gather(loopback, known)
    if "pairs" not in examined["parts"]:
        return
    links = {
        (host, peer): link
        for host, peers in examined["links"].items()
        for peer, link in peers.items()
        if peer in examined["links"] and (host, peer) not in {**unresolved, **loopback}
    }
    tried = {pair for pair, link in links.items() if "out" in link}
    elsewhere, blocked = _unreached(links, examined)
    yield from _gather(elsewhere, tried)
    yield from _gather(blocked, tried)
    times = {p: link["least_rtt_ms"] for p, link in links.items() if "least_rtt_ms" in link}
    late = {pair: _late(time) for pair, time in times.items() if time > MAX_RTT_MS}
    yield from _gather(late, times)
    rates = {pair: link["sent_mbit"] for pair, link in links.items() if "sent_mbit" in link}
    holes = {pair: _hole(*pair, examined) for pair, rate in rates.items() if not rate}
    yield from _gather(holes, rates)
    rates = {pair: rate for pair, rate in rates.items() if rate}
    lossy = {p: _lossy(*p, links[p]["resent"], rates[p]) for p in rates if _loses(p, links)}
    yield from _gather(lossy, rates)
    explained = {*late, *lossy}
    explained |= {(peer, host) for host, peer in explained}
    rates = {pair: rate for pair, rate in rates.items() if pair not in explained}
    # Paths within a machine are not relevant for the network.
    machines = {host: checkup["machine"] for host, checkup in examined["checkups"].items()}
    between = {(a, b): rate for (a, b), rate in rates.items() if machines[a] != machines[b]}
    rates = between or rates
    usual = _usual(rates)
    slow = {
        pair: _slow(*pair, rate, usual, examined)
        for pair, rate in rates.items()
        # A host with too few cores could not measure the rate.
        if rate < max(MIN_RATE, SLOW_PATH * usual) and _either("waited", pair, links) <= MAX_WAITED
    }
    yield from _gather(slow, rates)


def _gather(problems: _Problems, known: Iterable[_Pair]) -> Found:
    """Yield findings about the paths with a problem, and merge those that are about one host.

    A merged finding is about all paths, or about a host with the problem on all paths to it, from
    it, or both. ``known`` are the paths on which the problem was checked.
    """
    known, left = set(known), dict(problems)
    hosts = sorted({host for pair in known for host in pair})
    if len(hosts) > 2 and left and set(left) == known:
        yield {**next(iter(left.values())), "where": "all paths"}
        return
    while True:
        groups = []
        for host in hosts:
            to = {pair for pair in known if pair[1] == host}
            of = {pair for pair in known if pair[0] == host}
            for ending, paths in (("", to | of), (" (to it)", to), (" (from it)", of)):
                if len(paths) > 1 and paths <= set(problems) and len(paths & set(left)) > 1:
                    groups.append((len(paths & set(left)), host, ending, paths))
        if not groups:
            break
        _, host, ending, paths = max(groups, key=lambda group: group[0])
        worst = min(paths & set(left), key=lambda pair: _ORDER.index(left[pair]["severity"]))
        said = f"all paths{ending}: {left[worst]['found']}"
        yield {**left[worst], "where": host, "found": said}
        left = {pair: problem for pair, problem in left.items() if pair not in paths}
    for (host, peer), problem in left.items():
        if host == peer:
            yield {**problem, "where": host}
        elif (peer, host) not in left:
            yield {**problem, "where": f"{host} -> {peer}"}
        elif host < peer:
            yield {**problem, "where": f"{host} <-> {peer}"}


def _names(examined: Examined) -> tuple[_Problems, _Problems, set[_Pair]]:
    """Return unresolved addresses, addresses that lead to the host itself, and all checked ones.

    Each is identified by the host that uses the address and the host that it is meant to reach.
    """
    checkups = examined["checkups"]
    unresolved, loopback, checked = {}, {}, set()
    for host, checkup in checkups.items():
        for target, address in examined["addresses"].items():
            resolved, is_itself = checkup["resolved"].get(address, []), host == target
            if not is_itself and checkup["machine"] == checkups[target]["machine"]:
                continue
            checked.add((host, target))
            if not resolved:
                remedy = (
                    f"add {address} to /etc/hosts on {host}, or set train_job_address of "
                    f"{target} to an IP address"
                )
                said = f"{address} cannot be resolved on {host}"
                problem = _finding(FAIL, "unresolved", "", said, "an address", remedy)
                unresolved[host, target] = problem
            elif all(ip.startswith("127.") or ip == "::1" for ip in resolved):
                if all(c["machine"] == checkup["machine"] for c in checkups.values()):
                    continue  # all hosts are one machine
                bad, said = (
                    WARNING if is_itself else FAIL,
                    f"{address} resolves to {resolved[0]} on {host}",
                )
                remedy = (
                    f"set train_job_address of {target} to its IP address, or remove the line "
                    f"for {address} from /etc/hosts on {host} (127.0.1.1 on Debian)"
                )
                problem = _finding(bad, "loopback", "", said, "an address on the network", remedy)
                loopback[host, target] = problem
    return unresolved, loopback, checked


def _unreached(links: Mapping[_Pair, Link], examined: Examined) -> tuple[_Problems, _Problems]:
    """Return the problems of paths that lead to the wrong host, and those of blocked paths."""
    elsewhere, blocked = {}, {}
    for (host, peer), link in links.items():
        out, checkup = link.get("out"), examined["checkups"][peer]
        place = f"{examined['addresses'][peer]} port {checkup['spare_port']}"
        if link.get("met"):
            said = f"connections to {peer} at {place} reach {link['met']}"
            remedy = f"set train_job_address of {peer} to its own address"
            elsewhere[host, peer] = _finding(FAIL, "wrong-address", "", said, peer, remedy)
        elif out not in (None, probe.OPEN, probe.UNRESOLVABLE):
            # If the port itself is in use, the other port need not be open.
            bad = FAIL if checkup["spare_port"] == checkup["port"] else INFO
            remedy = (
                f"open port {checkup['spare_port']} of {peer} to {host}: use "
                f"`{_setup(peer, 'firewall')}`, or change your own firewall"
            )
            said = f"{place}: {out}"
            blocked[host, peer] = _finding(bad, "port-blocked", "", said, "open", remedy)
    return elsewhere, blocked


def _late(rtt: float) -> Finding:
    remedy = "train on hosts of one network, or exchange gradients less often (--accumulate)"
    said = f"the round-trip time is {rtt:.0f} ms"
    return _finding(WARNING, "latency", "", said, f"below {MAX_RTT_MS:g} ms", remedy)


def _hole(host: str, peer: str, examined: Examined) -> Finding:
    mtu = examined["links"][host][peer].get("mtu", 0)
    said = f"small packets arrive, but large ones do not (MTU {mtu or 'unknown'})"
    size, address = max(mtu, 1500) - 28, examined["addresses"][peer]
    ping = suggest("ping", on=host, size=size, address=address)
    remedy = f"lower the MTU of the interface to the largest size that passes: `{ping}`"
    return _finding(FAIL, "mtu", "", said, "packets as large as the interface's MTU arrive", remedy)


def _loses(pair: _Pair, links: Mapping[_Pair, Link]) -> bool:
    """Return whether packets are lost for a reason other than congestion of a slow path."""
    part, rate = links[pair].get("resent", 0.0), links[pair]["sent_mbit"]
    if part <= MAX_RESENT:
        return False
    rtt = max(0.1, _either("least_rtt_ms", pair, links))
    # The maximum rate of TCP with such losses, by Mathis and others (1997).
    reached = 1e-6 * _SEGMENT / (1e-3 * rtt * part**0.5)
    return bool(rate > _LOSS_PART * reached)


def _lossy(host: str, peer: str, part: float, rate: float) -> Finding:
    counts = " and ".join(f"`{suggest('link-errors', on=one)}`" for one in (host, peer))
    remedy = f"check the cable and the switch; {counts} show error counters"
    said = f"{part:.1%} of packets are retransmitted, the rate is {rate:.3g} Mbit/s"
    return _finding(WARNING, "loss", "", said, f"below {MAX_RESENT:.1%}", remedy)


def _either(name: str, pair: _Pair, links: Mapping[_Pair, Mapping[str, Any]]) -> float:
    """Return the larger measurement ``name`` of a path and its reverse, or 0 if there is none."""
    return max(float(links[one].get(name, 0)) for one in (pair, pair[::-1]) if one in links)


def _usual(rates: Mapping[_Pair, float]) -> float:
    """Return the median of the hosts' best rates.

    With few hosts, one slow host slows most paths, so the median of all paths would be too low.
    """
    best: dict[str, float] = {}
    for pair, rate in rates.items():
        for host in pair:
            best[host] = max(rate, best.get(host, 0.0))
    return statistics.median(best.values()) if best else 0.0


def _slow(host: str, peer: str, rate: float, usual: float, examined: Examined) -> Finding:
    fast = usual > MIN_RATE
    said = f"{rate:.3g} Mbit/s" + (f", others {usual:.0f}" if fast else "")
    advice = " ".join(filter(None, [_other_interface(one, examined) for one in (host, peer)]))
    server = suggest("measure-server", on=peer)
    client = suggest("measure-client", on=host, address=examined["addresses"][peer])
    errors = suggest("link-errors", on=host)
    remedy = (
        advice
        or f"measure the rate with `{server}` and `{client}`; `{errors}` shows error counters"
    )
    good = f"about {usual:.0f} Mbit/s" if fast else f"{MIN_RATE:g} Mbit/s or more"
    return _finding(WARNING, "slow", "", said, good, remedy)


def _other_interface(host: str, examined: Examined) -> str:
    """Return advice to use another network interface of a host, or an empty string without one."""
    checkup = examined["checkups"][host]
    there = checkup["resolved"].get(examined["addresses"][host], [])
    used = {n for n, face in checkup["interfaces"].items() if {*there} & {*face["addresses"]}}
    others = {
        name: face["addresses"][0]
        for name, face in checkup["interfaces"].items()
        if name not in used and face["addresses"] and not re.match("docker|br-|virbr|veth", name)
    }
    if not used or not others:
        return ""
    name, address = next(iter(others.items()))
    return (
        f"{host} is reached through the interface {min(used)}, but also has {name}: set "
        f"train_job_address of {host} to {address}"
    )


# Differences between hosts.


def _alike(examined: Examined) -> Found:
    checkups = examined["checkups"]
    passed: set[str] = set()  # hosts with a more severe finding
    for name, of, bad, remedy in _PROPERTIES:
        what = f"differs-{name.lower().replace(' ', '-')}"
        values = {host: of(checkup) for host, checkup in checkups.items() if host not in passed}
        values = {host: value for host, value in values.items() if value}
        usual = statistics.mode(values.values()) if values else None
        odd = [host for host, value in values.items() if value != usual]
        if odd and len(odd) < len(values) / 2:
            for host in odd:
                yield _finding(bad, what, host, f"{name}: {values[host]}", str(usual), remedy)
        elif odd:
            said = "; ".join(f"{value} ({host})" for host, value in values.items())
            yield _finding(bad, what, "all hosts", f"{name}: {said}", "the same", remedy)
        if bad == FAIL:
            passed.update(odd)
    for name, speed, bad in _SPEEDS:
        speeds = {host: speed(checkup) for host, checkup in checkups.items()}
        speeds = {host: found for host, found in speeds.items() if found > 0}
        usual_speed = statistics.median(speeds.values()) if len(speeds) > 2 else 0.0
        for host, found_speed in speeds.items():
            checkup = checkups[host]
            limited = checkup["usable_cores"] < checkup["cores"] or checkup["busy_cores"] > BUSY
            if found_speed < SLOW * usual_speed and not limited and not checkup["leases"]:
                said = f"{name}: {found_speed / usual_speed:.0%} of the speed of the other hosts"
                remedy = (
                    "the gang waits for its slowest host: check the load and the clock rate of "
                    f"{host}"
                )
                yield _finding(
                    bad, "slow-compute", host, said, "the same speed as the other hosts", remedy
                )


def _interface(checkup: Checkup) -> Mapping[str, Any]:
    """Return the interface that has the host's address, or an empty mapping if unknown."""
    own = {one for name in checkup["own"] for one in checkup["resolved"].get(name, [])}
    faces = checkup["interfaces"].values()
    return next((face for face in faces if own & {*face["addresses"]}), {})


def _packages(checkup: Checkup) -> str:
    own = checkup["framework"]
    known = {name: version for name, version in checkup["packages"].items() if name != own}
    return ", ".join(f"{name} {version}" for name, version in sorted(known.items()))


_PROPERTIES: tuple[tuple[str, Callable[[Checkup], Any], str, str], ...] = (
    ("TensorFlow", _version_of(frameworks.TENSORFLOW), FAIL, _SETUP),
    ("JAX", _version_of(frameworks.JAX), FAIL, _SETUP),
    ("PyTorch", _version_of(frameworks.TORCH), FAIL, "install the same version on all hosts"),
    ("packages", _packages, WARNING, _SETUP),
    ("kernel", lambda c: c["kernel"], INFO, "update the host"),
    ("C library", lambda c: c["libc"], INFO, "update the host"),
    ("processor", lambda c: c["cpu"], INFO, "the gang waits for its slowest host"),
    ("cores", lambda c: c["cores"], INFO, "the gang waits for its slowest host"),
    ("memory", lambda c: round(c["memory"] / 2048), INFO, ""),
    ("MTU", lambda c: _interface(c).get("mtu"), WARNING, "give all interfaces the same MTU"),
    (
        "network speed",
        lambda c: _interface(c).get("speed"),
        WARNING,
        "check the cable and the switch",
    ),
    ("clock source", lambda c: c["clocksource"], INFO, ""),
    ("GPUs", lambda c: ", ".join(g.get("name", "") for g in c["gpus"]), WARNING, ""),
    (
        "driver",
        lambda c: ", ".join(sorted({g.get("driver_version", "") for g in c["gpus"]})),
        WARNING,
        suggest("setup", tags="nvidia_driver"),
    ),
)
# On a healthy but busy host, a loop of some milliseconds ran at a third of the others' speed, so a
# slow loop is only reported for information.
_SPEEDS: tuple[tuple[str, Callable[[Checkup], float], str], ...] = (
    ("plain loop", lambda c: c["loops"], INFO),
    ("matrix product", lambda c: c["imported"].get("gflops", 0.0), WARNING),
)
