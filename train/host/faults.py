"""Injects a fault into a rank or its host, for a drill; faults of a host end by themselves."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import time
from typing import Callable, List, Tuple

from . import processes, rank_files, ranks, records
from .call_types import CallError, CallResult, Params
from .processes import read_text

KILL = "kill"
FREEZE = "freeze"
PORT = "port"
SSH = "ssh"
FAULTS = (KILL, FREEZE, PORT, SSH)
#: The nftables table, or the iptables chain, for the rules.
_TABLE = "train_drill"
#: Both directions: connections to the rank, and the rank's own.
_WAYS = ("dport", "sport")
#: The commands that begin a fault, and those that end it.
_Commands = Tuple[List[List[str]], List[List[str]]]
#: Delay in seconds of a fault that would otherwise interrupt the answer.
_LATER = 1.0


class FaultError(Exception):
    """The fault cannot be injected; the message names the requirement."""


def inject_fault(params: Params) -> CallResult:
    """Inject a fault of a drill.

    Return ``delay``, the seconds until it begins, or why it was not injected in
    ``skipped_because``.
    """
    job = str(params["job"])
    if not job.startswith("drill-"):
        raise CallError("%s is not a drill job" % job)
    found = ranks.find(rank_files.expand(params["root"]), params["host"], job)
    if not found:
        raise CallError("this host has no rank of job %s" % job)
    try:
        delay = inject(params["fault"], ranks.observe(found[0]), float(params["seconds"]))
    except FaultError as error:
        return {"skipped_because": str(error)}
    return {"changed": True, "skipped_because": "", "delay": delay}


def inject(fault: str, state: records.RankState, seconds: float) -> float:
    """Inject ``fault`` into the rank with this ``state.json``, or into its host.

    Return the seconds until it begins. Raise FaultError if a requirement, such as root, is not met.
    ``kill`` and ``freeze`` are permanent. ``port`` drops packets to and from the rank's port for
    ``seconds``, and ``ssh`` stops all processes of sshd for that time.
    """
    if fault in (KILL, FREEZE):
        signum = signal.SIGKILL if fault == KILL else signal.SIGSTOP
        if not processes.is_alive(state.get("pid"), state.get("pid_start")):
            raise FaultError("the rank is not running")
        processes.send(state["pid"], signum, group=fault == FREEZE)
        return 0.0
    if os.geteuid() != 0:
        raise FaultError("this fault needs root: set ansible_become for the hosts")
    if fault == PORT:
        if state["port"] is None:
            raise FaultError("the rank has no port")
        _drop(state["port"], seconds)
        return 0.0
    _stop_sshd(seconds)
    return _LATER


def _drop(port: int, seconds: float) -> None:
    nft = shutil.which("nft")
    begin, end = _nft(nft, port, seconds) if nft else _iptables(port, seconds)

    def undo() -> None:
        for command in end:
            processes.run(command)

    undo()  # in case the process of an earlier drill was killed
    _later(undo, seconds)
    for command in begin:
        done = processes.run(command)
        if done.returncode:
            raise FaultError("the firewall rejects the rule: " + done.stderr.strip())


def _nft(nft: str, port: int, seconds: float) -> _Commands:
    """Return nft commands that begin and end the fault; the rules also expire in the kernel."""
    table = "inet " + _TABLE
    begin = [
        "add table " + table,
        "add set %s ports { type inet_service; flags timeout; }" % table,
        "add chain %s in { type filter hook input priority -300; }" % table,
        *("add rule %s in tcp %s @ports drop" % (table, way) for way in _WAYS),
        "add element %s ports { %d timeout %ds }" % (table, port, math.ceil(seconds)),
    ]
    return [[nft, "; ".join(begin)]], [[nft, "delete table " + table]]


def _iptables(port: int, seconds: float) -> _Commands:
    """Return the same commands as ``_nft`` for iptables and, if the host has IPv6, ip6tables."""
    names = ["iptables", *(["ip6tables"] if os.path.exists("/proc/net/if_inet6") else [])]
    stop = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(math.ceil(time.time() + seconds)))
    begin, end = [], []
    for name in names:
        program = shutil.which(name)
        if not program:
            raise FaultError("this fault needs nft, or " + " and ".join(names))
        begin.append("%s -w -N %s" % (program, _TABLE))
        for way in _WAYS:
            rule = "-p tcp --%s %d -m time --datestop %s -j DROP" % (way, port, stop)
            begin.append("%s -w -A %s %s" % (program, _TABLE, rule))
        begin.append("%s -w -I INPUT -j %s" % (program, _TABLE))
        for rule in ("-D INPUT -j", "-F", "-X"):
            end.append("%s -w %s %s" % (program, rule, _TABLE))
    return [command.split() for command in begin], [command.split() for command in end]


def _sshd() -> List[int]:
    names = ("sshd", "sshd-session", "sshd-auth")
    return [pid for pid in processes.pids() if read_text("/proc/%d/comm" % pid).strip() in names]


def _stop_sshd(seconds: float) -> None:
    if not _sshd():
        raise FaultError("no sshd was found")

    def send_all(signum: int) -> None:
        for pid in _sshd():
            processes.send(pid, signum)

    def stop() -> None:
        try:
            send_all(signal.SIGSTOP)  # Ansible's connection may be one of them, and resumes
            time.sleep(seconds)
        finally:
            send_all(signal.SIGCONT)

    # A second process continues them, in case the first one is killed.
    _later(lambda: send_all(signal.SIGCONT), _LATER + seconds)
    _later(stop, _LATER)


def _later(action: Callable[[], None], seconds: float) -> None:
    """Run ``action`` after ``seconds`` in a background process with a separate session."""
    sys.stdout.flush()
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    time.sleep(seconds)
    action()
    os._exit(0)
