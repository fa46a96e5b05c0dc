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
    program = shutil.which("iptables")
    if program is None:
        raise FaultError("it needs iptables")
    rules = [
        ["INPUT", "-p", "tcp", way, str(port), "-j", "DROP", "-m", "comment", "--comment", "drill"]
        for way in ("--dport", "--sport")
    ]

    def undo() -> None:
        for rule in rules:
            subprocess.call([str(program), "-w", "-D", *rule], stderr=subprocess.DEVNULL)

    _later(undo, seconds)
    for rule in rules:
        if subprocess.call([program, "-w", "-I", *rule]):
            raise FaultError("iptables refuses the rule")


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
