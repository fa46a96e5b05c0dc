"""Leaves processes behind in many different ways.

Call it as main.py WAY END, where END is the script's own continuation: exit, fail or stay.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SLEEP = ["sleep", "600"]
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
CLONE_PARENT = 0x8000
SYS_CLONE, SYS_EXIT = 56, 60  # of x86_64


def forked(action: Callable[[], Any] = lambda: None, session: bool = False) -> int:
    """Call ``action`` in a child, which then sleeps; return its pid once it sleeps."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        return pid
    if session:
        os.setsid()
    action()
    os.write(writer, b"x")
    time.sleep(600)
    os._exit(0)


def in_between(action: Callable[[], Any]) -> None:
    """Call ``action`` in a child that ends at once, so that its own children become orphans."""
    pid = os.fork()
    if not pid:
        action()
        os._exit(0)
    os.waitpid(pid, 0)


def be_a_daemon() -> None:
    os.chdir("/")
    os.umask(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)


def close_everything() -> None:
    os.closerange(0, 3)
    os.closerange(5, 65536)  # except the pipe that reports its start


def be_deaf() -> None:
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    LIBC.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def churn(session: bool) -> None:
    """Start a chain of short processes: each forks the next one and ends.

    A listing of the processes may miss all of them, so they report themselves in a file. They end
    after two minutes, so that an interrupted test does not leave them on the machine.
    """
    if os.fork():
        return
    beats = os.open(os.path.join(os.environ["TRAIN_RANK_DIR"], "beats"), os.O_WRONLY | os.O_CREAT)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if session:
            os.setsid()
        os.write(beats, b"x")
        time.sleep(0.005)
        if os.fork():
            break
    os._exit(0)


def adopt_orphans() -> None:
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    in_between(lambda: forked(session=True))


def grow(depth: int) -> None:
    if depth:
        forked(lambda: grow(depth - 1), session=True)
        forked(lambda: grow(depth - 1))


def thread_without_its_leader() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()
    # From now on, the process looks like a zombie without being one.
    LIBC.syscall(SYS_EXIT, 0)


def start_a_sibling() -> None:
    if LIBC.syscall(SYS_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.execvp("sleep", SLEEP)


def run(*words: str, **options: Any) -> None:
    subprocess.Popen([*words, *SLEEP], **options)


def with_multiprocessing() -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def without_a_leader() -> None:
    pid = os.fork()
    if not pid:
        thread_without_its_leader()


WAYS: dict[str, Callable[[], Any]] = {
    "child": run,
    "empty environment": lambda: run("env", "-i"),
    "session": lambda: run("setsid"),
    "session and empty environment": lambda: run("setsid", "env", "-i"),
    "group": lambda: run(preexec_fn=os.setpgrp, env={}),
    "nohup": lambda: run("nohup"),
    "background": lambda: subprocess.run(["sh", "-c", "env -i sleep 600 &"], check=True),
    "double fork": lambda: in_between(forked),
    "daemon": lambda: in_between(lambda: forked(be_a_daemon, session=True)),
    "closed files": lambda: in_between(lambda: forked(close_everything, session=True)),
    "another name": lambda: forked(lambda: LIBC.prctl(PR_SET_NAME, b"kworker/0:1", 0, 0, 0), True),
    "deaf": lambda: forked(be_deaf, session=True),
    "stopped": lambda: os.kill(forked(), signal.SIGSTOP),
    "churn": lambda: churn(session=False),
    "churn in sessions": lambda: churn(session=True),
    "subreaper": lambda: forked(adopt_orphans),
    "spawn": lambda: os.posix_spawnp("sleep", SLEEP, {}, setsid=True),
    "terminal": lambda: pty.fork()[0] or os.execvpe("sleep", SLEEP, {}),
    "multiprocessing": with_multiprocessing,
    "tree": lambda: grow(4),
    "sibling": start_a_sibling,
    "thread": without_a_leader,
}


def main() -> None:
    way, end = sys.argv[1:]
    WAYS[way]()
    time.sleep(0.3)  # until it has become this kind of process
    print("ready", flush=True)
    if end == "stay":
        time.sleep(600)
    # Do not wait for any of them.
    os._exit(3 if end == "fail" else 0)


if __name__ == "__main__":
    main()
