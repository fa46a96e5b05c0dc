"""Does one thing to a rank or to its host, for a drill; what is done to a host undoes itself.

Linux only, standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List

from . import processes

KILL = "kill"
FREEZE = "freeze"
PORT = "port"
SSH = "ssh"
FAULTS = (KILL, FREEZE, PORT, SSH)
#: What its rules are known by.
_TABLE = "train_drill"
#: Seconds until what was asked for begins where it would cut off the answer.
_LATER = 1.0


class FaultError(Exception):
    """It cannot be done here; the message says what it needs."""


def inject(fault: str, state: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """Do ``fault`` to the rank with ``state`` (of ``state.json``), or to its host.

    ``kill`` and ``freeze`` are for good. ``port`` drops what comes to the rank's port, and ``ssh``
    stops all of sshd's processes, for ``seconds``; a process of its own ends that, whatever becomes
    of the caller.

    Returns:
        ``delay``: in how many seconds it begins.

    Raises:
        FaultError: it needs root or a program that is missing.
    """
    if fault in (KILL, FREEZE):
        signum = signal.SIGKILL if fault == KILL else signal.SIGSTOP
        if not processes.is_alive(state.get("pid"), state.get("pid_start")):
            raise FaultError("the rank does not run")
        processes.send(state["pid"], signum, group=fault == FREEZE)
        return {"delay": 0.0}
    if os.geteuid() != 0:
        raise FaultError("it needs root: set ansible_become for the hosts")
    if fault == PORT:
        _drop(int(state["port"]), seconds)
        return {"delay": 0.0}
    _stop_sshd(seconds)
    return {"delay": _LATER}


def _drop(port: int, seconds: float) -> None:
    nft, iptables = shutil.which("nft"), shutil.which("iptables")
    ways = ("dport", "sport")
    if nft:
        chain = "inet %s in" % _TABLE
        rules = ["add rule %s tcp %s %d drop" % (chain, way, port) for way in ways]
        hook = "add chain %s { type filter hook input priority -300; }" % chain
        begin = [[nft, "; ".join(["add table inet " + _TABLE, hook, *rules])]]
        end = [[nft, "delete table inet " + _TABLE]]
    elif iptables:
        options = ["-p", "tcp", "-j", "DROP", "-m", "comment", "--comment", _TABLE]
        begin = [[iptables, "-w", "-I", "INPUT", *options, "--" + w, str(port)] for w in ways]
        end = [[iptables, "-w", "-D", *words[3:]] for words in begin]
    else:
        raise FaultError("it needs nft or iptables")

    def undo() -> None:
        for command in end:
            subprocess.call(command, stderr=subprocess.DEVNULL)

    _later(undo, seconds)
    for command in begin:
        done = subprocess.run(command, stderr=subprocess.PIPE, universal_newlines=True, check=False)
        if done.returncode:
            raise FaultError("the firewall refuses the rule: " + done.stderr.strip())


def _sshd() -> List[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/comm" % entry, encoding="utf-8") as stream:
                    if stream.read().strip() in ("sshd", "sshd-session", "sshd-auth"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def _stop_sshd(seconds: float) -> None:
    if not _sshd():
        raise FaultError("there is no sshd")

    def stop() -> None:
        # Ansible's connection may be one of them: it goes on where it was.
        stopped = _sshd()
        try:
            for pid in stopped:
                processes.send(pid, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            for pid in {*stopped, *_sshd()}:
                processes.send(pid, signal.SIGCONT)

    _later(stop, _LATER)


def _later(action: Callable[[], None], seconds: float) -> None:
    """Do something in a session of its own after some seconds."""
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
