"""Measures a job on many hosts: one sshd on many loopback addresses, ranks without TensorFlow.

The hosts are one container in the network of this machine. Each has a different address
(127.0.1.1, 127.0.1.2, ...) and separate folders. They share their cores with the control node, so
the seconds are those of one small machine that does the work of all of them.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ranks import print_header, print_row, scratch, stop
from tests.support.jobs import PLAIN, ansible_of
from tests.support.lab import Command, Lab, free_port
from tests.support.testbed import BOOKWORM, docker
from tests.support.testbed.bed import USER
from tests.support.testbed.engine import build_image, run
from train.host import processes

#: Number of hosts.
HOSTS = int(os.environ.get("SCALE_HOSTS", "250"))
#: Limits in seconds, and for the watch in cores and MiB.
LIMITS = {
    "all ranks have started after, s": "60",
    "first to last start, s": "5",
    "a killed rank is named after, s": "10",
    "`stop` of all ranks, s": "30",
    "watch: cores": "1",
    "watch: MiB": "1024",
}
_WATCHED_S = 20.0
_LIMIT_S = 600.0


@dataclass(frozen=True)
class _Bed:
    """The container with all hosts, and a lab with them."""

    container: str
    lab: Lab

    def shell(self, script: str) -> str:
        """Run a shell script in the container as the user of the ranks; return its output."""
        asked = ("exec", "--user", USER, self.container, "sh", "-c", script)
        return docker(*asked, check=False, timeout=_LIMIT_S).stdout

    def states(self, job: str) -> list[dict[str, Any]]:
        """Return ``state.json`` of all ranks of a job."""
        found = self.shell(f"cat /home/{USER}/*/jobs/{job}/*/state.json")
        decoder, states = json.JSONDecoder(), []
        while found:
            state, end = decoder.raw_decode(found)
            states.append(state)
            found = found[end:].lstrip()
        return states

    def left(self) -> list[str]:
        """Return the processes of jobs that run in the container."""
        return self.shell("pgrep -fa 'host[.]supervisor|host[.]updates|main[.]py'").splitlines()


@contextmanager
def _loopback_bed(count: int, folder: Path) -> Iterator[_Bed]:
    image, container, port = build_image(BOOKWORM), f"scale-{secrets.token_hex(4)}", free_port()
    key = folder / "id_ed25519"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", USER, "-f", str(key))
    sshd = f"exec /usr/sbin/sshd -D -e -p {port} -o MaxStartups={2 * count}"
    made = "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    started = ("run", "--detach", "--init", "--network", "host", "--name", container)
    docker(*started, image, "sh", "-c", f"{made}; {sshd}")
    try:
        public = key.with_suffix(".pub").read_text(encoding="utf-8")
        home = f"/home/{USER}/.ssh/authorized_keys"
        given = ("exec", "--interactive", "--user", USER, container, "sh", "-c")
        docker(*given, f"umask 077; cat > {home}", stdin=public)
        read = ("exec", container, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
        host_key = " ".join(docker(*read).stdout.split()[:2])
        (folder / "known_hosts").write_text(f"[127.0.*.*]:{port} {host_key}\n", encoding="utf-8")
        yield _Bed(container, Lab(_write_inventory(count, folder, port), folder / "runs", {}))
    finally:
        docker("rm", "--force", "--volumes", container)


def _write_inventory(count: int, folder: Path, port: int) -> Path:
    hosts = {}
    for number in range(count):
        root = f"/home/{USER}/h{number:03}"
        hosts[f"h{number:03}"] = {
            "ansible_host": f"127.0.{1 + number // 250}.{1 + number % 250}",
            "train_job_port": free_port(),
            "train_job_root": root,
            "train_job_lease_dir": f"{root}/leases",
        }
    options = f"-o UserKnownHostsFile={folder}/known_hosts -o GlobalKnownHostsFile=/dev/null"
    variables = {
        "ansible_user": USER,
        "ansible_port": port,
        "ansible_ssh_private_key_file": str(folder / "id_ed25519"),
        "ansible_ssh_common_args": f"{options} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
        "train_job_python": "/usr/bin/python3",
        "train_job_max_restarts": 0,
        "train_job_min_free_mb": 1,
    }
    path = folder / "hosts.json"
    path.write_text(json.dumps({"worker": {"hosts": hosts, "vars": variables}}), encoding="utf-8")
    return path


def _ticks_and_mib(pids: Sequence[int]) -> tuple[int, float]:
    """Return the processor time in ticks and the proportional memory of some processes."""
    ticks, kib = 0, 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            ticks += sum(map(int, fields.split()[11:15]))
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        kib += int(rollup.partition("\nPss:")[2].split()[0])
    return ticks, kib / 1024


def watch_load(lab: Lab, wrapper: int) -> tuple[float, float]:
    """Return the cores and the MiB that the watch of a job uses."""

    def used() -> tuple[int, float]:
        parents = [wrapper, *ansible_of(lab)]
        return _ticks_and_mib([*{*parents, *processes.descendants(parents, processes.snapshot())}])

    before, _ = used()
    time.sleep(_WATCHED_S)
    after, mib = used()
    return (after - before) / os.sysconf("SC_CLK_TCK") / _WATCHED_S, mib


def _started(bed: _Bed, command: Command, job: str, count: int) -> list[float]:
    """Wait until all ranks of a job have started, and return when."""
    while command.process.poll() is None:
        times = [state["started_at"] for state in bed.states(job) if "pid" in state]
        if len(times) == count:
            return times
        time.sleep(2)
    raise RuntimeError(f"the job has ended: {command.end().result['message']}")


def _measure(bed: _Bed, count: int) -> dict[str, float]:
    """Run two jobs on all hosts: a rank of the first one is killed, the second one is stopped."""
    found = {}
    arguments = ["--steps", "100000", "--seconds", "1"]
    for job in ("killed", "stopped"):
        began = time.time()
        command = bed.lab.start("--job", job, "--script", str(PLAIN), arguments=arguments)
        times = _started(bed, command, job, count)
        if job == "stopped":
            found["`stop` of all ranks, s"] = stop(bed.lab, job)
            command.end(_LIMIT_S)
        else:
            found["all ranks have started after, s"] = max(times) - began
            found["first to last start, s"] = max(times) - min(times)
            shown: set[str] = set()
            while len(shown) < count:
                shown.add(command.wait_for(lambda event: event.get("phase") == "running")["task"])
            cores, mib = watch_load(bed.lab, command.process.pid)
            found |= {"watch: cores": cores, "watch: MiB": mib}
            task = f"worker-{count // 2}"
            (pid,) = (state["pid"] for state in bed.states(job) if state["task"] == task)
            bed.shell(f"kill -KILL {pid}")
            killed = time.time()
            failed = command.wait_for(lambda event: event.get("phase") == "failed")
            if failed["task"] != task:
                raise RuntimeError(f"{failed['task']} failed first, not {task}")
            found["a killed rank is named after, s"] = failed["t"] - killed
            cause = command.end(_LIMIT_S).result["message"]
            if task not in cause:
                raise RuntimeError(f"another cause was named: {cause}")
        if left := bed.left():
            raise RuntimeError(f"{len(left)} processes were left: {left[:3]}")
    return found


def scale(rounds: int) -> None:
    """Measure a job on 250 loopback hosts: start, watch, a killed rank, and `stop`.

    This runs only on request. The variable SCALE_HOSTS sets another number of hosts.
    """
    print_header("hosts", *LIMITS)
    print_row("limit", *LIMITS.values())
    for _ in range(rounds):
        with scratch() as folder, _loopback_bed(HOSTS, folder) as bed:
            found = _measure(bed, HOSTS)
            print_row(HOSTS, *(f"{found[name]:.1f}" for name in LIMITS))
