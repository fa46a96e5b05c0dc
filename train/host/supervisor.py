"""The rank supervisor: runs one rank's script and keeps its ``state.json`` true.

    cd RANK_DIR/launcher && python3 -S -E -m host.supervisor RANK_DIR

It starts what ``rank.json`` says in a session and process group of its own, writes the output
straight to ``stdout.log``, notes when the rank's port is open, holds the start deadline and the
limit of the job, and ends the whole group (TERM, grace, KILL). If it is killed itself, its guardian
process kills what the rank has started: nothing is left behind. Standard library only, Python 3.8
and newer.

The command returns as soon as the supervisor, in a session of its own, has noted its start: what
called it (Ansible's async) need not stay for the job. The exit code is 0, or 1 with the reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import processes, ranks, records
from .console import ConsoleParser

#: Seconds between two looks at the rank; its end and signals are noticed at once.
TICK = 0.5
_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")


class Supervisor:
    """One rank from its start to its end.

    Args:
        rank_dir: the rank's folder, which holds ``rank.json`` and the staged code.
    """

    def __init__(self, rank_dir: str) -> None:
        self.rank_dir = rank_dir
        spec = records.read_json(self._path(records.RANK_FILE))
        if spec is None:
            raise SystemExit("%s: there is no %s" % (rank_dir, records.RANK_FILE))
        self.spec: Dict[str, Any] = spec
        self.state: Dict[str, Any] = {
            "version": records.FORMAT_VERSION,
            "job": spec["job"],
            "task": spec["task"],
            "attempt": spec["attempt"],
            "port": spec["port"],
            "phase": records.STARTING,
            "supervisor_pid": os.getpid(),
            "supervisor_start": processes.start_time(os.getpid()),
            "boot_id": processes.boot_id(),
            "started_at": round(time.time(), 3),
        }
        self._console = ConsoleParser()
        self._log_offset = 0
        self._console_bytes = 0

    def run(self, started: Callable[[], None]) -> None:
        """Start the rank and see it to its end.

        Args:
            started: called when the state says that the supervisor is there.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        self._save()
        started()
        release = _start_guardian(self.rank_dir, self.state)
        try:
            worker = self._start()
        except OSError as error:
            self._finish(records.FAILED, None, "cannot be started: %s" % error)
        else:
            self.state.update(pid=worker.pid, pid_start=processes.start_time(worker.pid))
            self._save()
            self._watch(worker)
        os.write(release, b"d")

    def _path(self, name: str) -> str:
        return os.path.join(self.rank_dir, name)

    def _save(self) -> None:
        try:
            records.write_json(self._path(records.STATE_FILE), self.state)
        except OSError as error:
            # A full disk must not end a rank that is training.
            print("cannot write %s: %s" % (records.STATE_FILE, error), file=sys.stderr)

    def _environment(self) -> Dict[str, str]:
        environment = dict(os.environ)
        # Variables of the shell that Ansible came through say nothing about the script.
        for name in ("ANSIBLE_ASYNC_DIR", "PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
        tf_config = records.read_json(self._path(records.TF_CONFIG_FILE))
        environment.update(
            {
                "TF_CONFIG": json.dumps(tf_config),
                "PYTHONUNBUFFERED": "1",
                records.ENV_GRPC: records.GRPC_OPTIONS,
                records.ENV_JOB: self.spec["job"],
                records.ENV_RANK_DIR: self.rank_dir,
                records.ENV_PROGRESS: self._path(records.PROGRESS_FILE),
                records.ENV_MODEL_DIR: self._path(records.MODEL_DIR),
                records.ENV_CHECKPOINT_DIR: self._path(records.CHECKPOINT_DIR),
                records.ENV_TENSORBOARD_DIR: self._path(records.TENSORBOARD_DIR),
                records.ENV_SEED: str(self.spec["seed"]),
                records.ENV_START_TIMEOUT: str(self.spec["start_timeout"]),
            }
        )
        environment["TF_USE_LEGACY_KERAS"] = "1" if self.spec["keras"] == 2 else "0"
        if self.spec["ranks_on_machine"] > 1:
            # Ranks of one machine that each take all cores slow each other down.
            threads = str(max(1, (os.cpu_count() or 1) // self.spec["ranks_on_machine"]))
            environment.setdefault("TF_NUM_INTRAOP_THREADS", threads)
            # With a single one, a chief and its parameter servers wait for one another for ever.
            least = 4 if (tf_config or {}).get("cluster", {}).get("ps") else 1
            environment.setdefault("TF_NUM_INTEROP_THREADS", str(max(least, int(threads))))
        if self.spec["gpus"] is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.spec["gpus"]) or "-1"
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # that of the driver's indices
            environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        environment.update(self.spec["environment"])
        return environment

    def _start(self) -> "subprocess.Popen[bytes]":
        parent = os.getpid()
        prctl = ctypes.CDLL(None, use_errno=True).prctl

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        # Not through the link of the environment in use: it may lead elsewhere before the job ends.
        folder, name = os.path.split(self.spec["python"])
        python = os.path.join(os.path.realpath(folder), name)
        with open(self._path(records.LOG_FILE), "ab") as log:
            return subprocess.Popen(
                [python, *self.spec["argv"]],
                cwd=os.path.join(self.rank_dir, records.CODE_DIR),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def _watch(self, worker: "subprocess.Popen[bytes]") -> None:
        began = time.monotonic()
        verdict: Optional[List[str]] = None  # phase and reason of an end that came from here
        kill_at = float("inf")
        while worker.poll() is None:
            woken = signal.sigtimedwait(_WAKING, TICK)
            now = time.monotonic()
            self._read_console()
            self._note_running()
            if verdict is None:
                verdict = self._limit(now - began)
                grace = self.spec["grace"]
                if woken is not None and woken.si_signo != signal.SIGCHLD:
                    request = records.read_json(self._path(ranks.STOP_FILE)) or {}
                    name = signal.Signals(woken.si_signo).name
                    verdict = [
                        records.STOPPED,
                        request.get("reason", "its supervisor got %s" % name),
                    ]
                    grace = request.get("grace", grace)
                if verdict is not None:
                    processes.send(worker.pid, signal.SIGTERM, group=True)
                    # A stopped process takes no signal but KILL and CONT.
                    processes.send(worker.pid, signal.SIGCONT, group=True)
                    kill_at = now + grace
            if now >= kill_at:
                processes.send(worker.pid, signal.SIGKILL, group=True)
        # Children may have outlived the script, even in sessions of their own.
        processes.kill_marked(records.ENV_RANK_DIR, self.rank_dir)
        self._read_console()
        if verdict is None:
            phase = records.COMPLETED if worker.returncode == 0 else records.FAILED
            verdict = [phase, self._why(worker.returncode)]
        self._finish(verdict[0], worker.returncode, verdict[1])

    def _limit(self, elapsed: float) -> Optional[List[str]]:
        timeout = self.spec["start_timeout"]
        if self.state["phase"] == records.STARTING and elapsed > timeout:
            reason = "did not open port %s within %s s" % (self.spec["port"], timeout)
            return [records.FAILED, reason + " (train_job_start_timeout)"]
        limit = self.spec["max_runtime"]
        if limit and elapsed > limit:
            return [records.FAILED, "ran longer than %s s (train_job_max_runtime)" % limit]
        return None

    def _note_running(self) -> None:
        if self.state["phase"] != records.STARTING:
            return
        port = self.spec["port"]
        if port is None or self._console_bytes or processes.is_listening(port):
            self.state["phase"] = records.RUNNING
            self.state["running_at"] = round(time.time(), 3)
            self._save()

    def _read_console(self) -> None:
        """Turn Keras' lines in the log into progress records, unless the script writes its own."""
        progress = self._path(records.PROGRESS_FILE)
        size = os.path.getsize(progress) if os.path.exists(progress) else 0
        if size != self._console_bytes:
            return
        with open(self._path(records.LOG_FILE), "rb") as stream:
            stream.seek(self._log_offset)
            data = stream.read()
        self._log_offset += len(data)
        found = self._console.feed(data)
        if found:
            # The records of one look are a burst: the last of each phase and epoch says it all.
            def keys(record: Dict[str, Any]) -> Tuple[Any, Any]:
                return record.get("phase"), record.get("epoch")

            writer = records.ProgressWriter(progress)
            for record, following in zip(found, [*found[1:], {}]):
                if keys(record) != keys(following):
                    fields = {key: value for key, value in record.items() if key != "phase"}
                    writer.write(record["phase"], force=True, **fields)
            self._console_bytes = os.path.getsize(progress)

    def _why(self, returncode: int) -> str:
        if returncode < 0:
            name = signal.Signals(-returncode).name
            return "was killed by %s (signal %d)" % (name, -returncode)
        if returncode == 0:
            return ""
        reason = "exited with code %d" % returncode
        with open(self._path(records.LOG_FILE), "rb") as stream:
            stream.seek(max(0, os.path.getsize(self._path(records.LOG_FILE)) - 65_536))
            lines = stream.read().decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if _EXCEPTION.match(line.strip())]
        return reason + (": " + said[-1][:300] if said else "")

    def _finish(self, phase: str, returncode: Optional[int], reason: str) -> None:
        self.state.update(
            phase=phase,
            exit_code=returncode,
            reason=reason,
            ended_at=round(time.time(), 3),
        )
        self._save()


def _start_guardian(rank_dir: str, state: Dict[str, Any]) -> int:
    """Fork the process that ends the rank if the supervisor is killed.

    Returns:
        The descriptor to write a byte to when the supervisor ends by itself.
    """
    reader, release = os.pipe()
    if os.fork():
        os.close(reader)
        return release
    os.close(release)
    os.setsid()  # a signal to the supervisor's group must not reach the guardian
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    if not os.read(reader, 1):
        processes.kill_marked(records.ENV_RANK_DIR, rank_dir)
        current = records.read_json(os.path.join(rank_dir, records.STATE_FILE)) or state
        if current["phase"] in records.ALIVE_PHASES:
            ended = {"phase": records.FAILED, "ended_at": round(time.time(), 3)}
            current.update(ended, exit_code=None, reason=ranks.orphaned(current))
            records.write_json(os.path.join(rank_dir, records.STATE_FILE), current)
    os._exit(0)


def main(rank_dir: str) -> int:
    """Start the supervisor of ``rank_dir`` in the background and return the exit code."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(os.path.join(rank_dir, "supervisor.log"), os.O_WRONLY | os.O_CREAT, 0o644)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        Supervisor(rank_dir).run(lambda: os.close(writer))
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)  # ends when the other end is closed, by its will or by its end
    if os.path.exists(os.path.join(rank_dir, records.STATE_FILE)):
        return 0
    with open(os.path.join(rank_dir, "supervisor.log"), encoding="utf-8") as stream:
        print(stream.read().strip() or "the supervisor ended at once", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
