"""Which processes are listed as descendants of a supervisor."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.lab import REPOSITORY

#: Leads a session with children in it and in others, and prints which of them are listed. The
#: first line of its input is the pid of an unrelated process that has started meanwhile.
LIST = """
import json, os, subprocess, sys
from train.host import offspring, processes

os.setsid()
processes.adopt()
before = subprocess.Popen(["sleep", "60"], start_new_session=True)
one = offspring.Offspring()
script = ["sh", "-c", "sleep 60 & echo $!; wait"]
leader = subprocess.Popen(script, stdout=-1, start_new_session=True)
in_session = int(leader.stdout.readline())
# Its parent ends at once, so that it is adopted.
daemon = "setsid sleep 60 >/dev/null & echo $!"
adopted = int(subprocess.run(["setsid", "sh", "-c", daemon], stdout=-1).stdout)
processes.wait_until(lambda: processes.session(adopted) == adopted, 10, 0.01)
print(flush=True)
stranger = int(sys.stdin.readline())
first = one.by_session()
leader.kill()
leader.wait()
second = one.by_session()
processes.send(in_session, 9)
processes.wait_until(lambda: os.waitpid(in_session, os.WNOHANG)[0], 10, 0.01)
third = one.pids()
for pid in (adopted, before.pid):
    processes.send(pid, 9)
expected = {leader.pid: [leader.pid, in_session], adopted: [adopted]}
print(json.dumps([
    first == expected,
    second == {leader.pid: [in_session], adopted: [adopted]},
    third == [adopted],
    processes.session(stranger) not in (0, *first),
]))
"""


def test_all_processes_of_new_sessions_are_listed_but_no_others() -> None:
    command = [sys.executable, "-S", "-c", LIST]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPOSITORY, **pipes) as lister:
        assert lister.stdin is not None
        assert lister.stdout is not None
        lister.stdout.readline()
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
            lister.stdin.write(f"{stranger.pid}\n")
            lister.stdin.flush()
            found = json.loads(lister.stdout.readline())
            stranger.kill()
    assert found == [True, True, True, True]
