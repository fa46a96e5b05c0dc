"""Runs commands on the nodes of a Slurm job as job steps, for clusters without SSH to the nodes.

Each command is a step: ``srun --overlap --jobid JOB --nodelist NODE --ntasks 1``. A step ends when
all processes that its command started have ended, so that Slurm counts a rank in the background as
part of the job. This plugin does not wait for them: it returns when the command itself has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection import ConnectionBase
from ansible.utils.display import Display

DOCUMENTATION = """
name: srun
short_description: Runs commands on the nodes of a Slurm job as job steps
description:
  - Runs each command as a step of a Slurm job, with C(srun --overlap). Files are sent and fetched
    through the standard input and output of a command.
  - The host's address is the name of a node of the job.
  - The steps have the environment of this process, without variables of Ansible, Python and Slurm.
extends_documentation_fragment: connection_pipelining
options:
  host:
    description: The name of the node.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
  job_id:
    description: The id of the Slurm job. Within a job, it is that job.
    required: true
    env:
      - name: SLURM_JOB_ID
    vars:
      - name: ansible_srun_job_id
  executable:
    description: The program C(srun).
    default: srun
    vars:
      - name: ansible_srun_executable
  extra_args:
    description: Further options of C(srun), such as C(--mem=0).
    default: ""
    vars:
      - name: ansible_srun_extra_args
  python:
    description: Python 3 on the nodes, for a program that stays with the processes of a step.
    default: python3
    vars:
      - name: ansible_srun_python
  timeout:
    description: Seconds within which a step must start.
    type: int
    default: 60
    vars:
      - name: ansible_srun_timeout
"""

display = Display()

#: Runs a command on the node: adopts its processes, reports its end, and waits for the end of all.
#: Slurm signals all processes of a step. This one ignores SIGTERM, because its end would end the
#: step, with ranks that save their checkpoints.
_STEP = """\
import ctypes, os, signal, subprocess, sys
mark, command = sys.argv[1:]
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
signal.signal(signal.SIGTERM, lambda number, frame: None)
os.write(1, ("%s begin\\n" % mark).encode())
code = subprocess.call(["/bin/sh", "-c", command])
for stream in (2, 1):
    os.write(stream, ("%s end %d\\n" % (mark, code if code >= 0 else 128 - code)).encode())
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
sys.exit(min(max(code, 0), 255))
"""
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_JOB = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,9})?")
#: Variables that are settings of srun or of programs on this machine.
_NOT_PASSED = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_", "ANSIBLE_", "TRAIN_", "PYTHON", "PMI")
#: Settings of srun that name the cluster.
_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
#: Maximum number of characters of an error of srun in a message.
_ERROR = 500
_POLL_S = 1.0
#: Maximum number of digits of an exit code.
_DIGITS = 3
#: Errors of srun that pass, if the command has not begun.
_BUSY = re.compile(
    r"Socket timed out|Communication connection failure|Unable to contact slurm controller|"
    r"temporarily|nodes are busy|Connection (?:refused|reset|timed out)",
    re.IGNORECASE,
)
_PAUSE_S = 2.0


class _BusyError(Exception):
    """A busy Slurm has not started a step."""


class _Stream:
    """Standard output or standard error of a step, up to the mark at the command's end.

    In standard output, another mark shows where the command's output begins.
    """

    def __init__(self, mark: bytes) -> None:
        self._begin, self._end = mark + b" begin\n", mark + b" end "
        self._data = bytearray()
        self.has_begun = False
        self.code: int | None = None

    def add(self, data: bytes) -> None:
        """Add output, and search it for the marks."""
        # The mark and the number after it may begin in data that was added before.
        start = max(0, len(self._data) - len(self._end) - _DIGITS)
        self._data += data
        if not self.has_begun:
            place = self._data.find(self._begin)
            if place >= 0:
                # srun or a startup file may have printed text before.
                del self._data[: place + len(self._begin)]
                self.has_begun, start = True, 0
        place = self._data.find(self._end, start)
        number, newline, _ = bytes(self._data[place + len(self._end) :]).partition(b"\n")
        if place >= 0 and newline:
            self.code = int(number)
            del self._data[place:]

    @property
    def text(self) -> bytes:
        """The output so far."""
        return bytes(self._data)


class Connection(ConnectionBase):  # type: ignore[misc]
    """A connection to a node of a Slurm job."""

    transport = "tensorflow_ansible.cluster.srun"
    has_pipelining = True

    def _connect(self) -> Connection:
        """Do nothing, because each command is a separate step."""
        self._connected = True
        return self

    def close(self) -> None:
        """Do nothing."""
        self._connected = False

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run a command on the node."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if sudoable and self.become and self.become.get_option("become_pass"):
            raise AnsibleError(
                "the connection plugin srun cannot enter a become password: use SSH, or a user "
                "who does not need one"
            )
        return self._run(cmd, in_data)

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file to the node."""
        super().put_file(in_path, out_path)
        if not Path(in_path).exists():
            raise AnsibleFileNotFound(f"file or module does not exist: {in_path}")
        with Path(in_path).open("rb") as stream:
            self._transfer(f"cat > {shlex.quote(out_path)}", stream)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file from the node."""
        super().fetch_file(in_path, out_path)
        Path(out_path).write_bytes(self._transfer(f"cat < {shlex.quote(in_path)}", None))

    def _transfer(self, command: str, stream: IO[bytes] | None) -> bytes:
        code, output, errors = self._run(command, stream)
        if code:
            raise AnsibleError(f"failed to transfer a file: {os.fsdecode(errors).strip()}")
        return output

    def _command(self, mark: str, command: str, has_input: bool) -> list[str]:
        """Return the words that run a command as a step."""
        node, job = str(self.get_option("host")), str(self.get_option("job_id"))
        if not _NODE.fullmatch(node):
            raise AnsibleError(f"{node!r} is not the name of a Slurm node: set ansible_host to it")
        if not _JOB.fullmatch(job):
            raise AnsibleError(f"{job!r} is not the id of a Slurm job: set ansible_srun_job_id")
        return [
            str(self.get_option("executable")),
            *("--overlap", f"--jobid={job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
            *("--quiet", "--mpi=none", "--cpu-bind=none", f"--chdir={Path.home()}"),
            *([] if has_input else ["--input=none"]),
            *shlex.split(str(self.get_option("extra_args"))),
            *(str(self.get_option("python")), "-S", "-E", "-c", _STEP, mark, command),
        ]

    def _run(self, command: str, in_data: bytes | IO[bytes] | None) -> tuple[int, bytes, bytes]:
        """Run a command; return its exit code and output.

        A step that a busy Slurm did not start is tried again until the timeout. Raise
        AnsibleConnectionFailure if the step did not start, or ended without a report.
        """
        deadline = time.monotonic() + float(self.get_option("timeout"))
        while True:
            try:
                return self._run_step(command, in_data)
            except _BusyError as error:
                if time.monotonic() + _PAUSE_S > deadline:
                    raise AnsibleConnectionFailure(str(error)) from error
                display.vvv(f"{error}: again in {_PAUSE_S:g} s", host=self.get_option("host"))
                time.sleep(_PAUSE_S)
                if in_data is not None and not isinstance(in_data, bytes):
                    in_data.seek(0)

    def _run_step(
        self, command: str, in_data: bytes | IO[bytes] | None
    ) -> tuple[int, bytes, bytes]:
        """Run a command as one step. Raise _BusyError if it may be tried again."""
        mark = f"step-{secrets.token_hex(12)}"
        words = self._command(mark, command, in_data is not None)
        is_file = in_data is not None and not isinstance(in_data, bytes)
        display.vvv(f"EXEC {shlex.join(words)}", host=self.get_option("host"))
        source: Any = in_data if is_file else subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                words,
                env=_environment(),
                stdin=subprocess.PIPE if isinstance(in_data, bytes) else source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # the step may outlive this process
            )
        except OSError as error:
            raise AnsibleConnectionFailure(
                f"cannot run {words[0]} ({error.strerror}): it is a program of Slurm"
            ) from error
        if isinstance(in_data, bytes):
            threading.Thread(target=_send, args=(process.stdin, in_data), daemon=True).start()
        output, errors = _Stream(mark.encode()), _Stream(mark.encode())
        try:
            self._read(process, output, errors)
        except BaseException:
            process.kill()
            raise
        finally:
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        if output.code is None:
            code = process.wait()
            reason = os.fsdecode(errors.text).strip()[-_ERROR:] or f"exit code {code}"
            is_busy = not output.has_begun and _BUSY.search(reason)
            kind = _BusyError if is_busy else AnsibleConnectionFailure
            raise kind(f"the Slurm step failed: {reason}")
        return output.code, output.text, errors.text

    def _read(self, process: subprocess.Popen[bytes], output: _Stream, errors: _Stream) -> None:
        """Read both outputs until the command has ended."""
        limit = float(self.get_option("timeout"))
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout or 1, selectors.EVENT_READ, output)
            selector.register(process.stderr or 2, selectors.EVENT_READ, errors)
            while selector.get_map() and (output.code is None or errors.code is None):
                for key, _ in selector.select(_POLL_S):
                    data = os.read(key.fd, 1 << 16)
                    if data:
                        key.data.add(data)
                    else:
                        selector.unregister(key.fileobj)
                if not output.has_begun and time.monotonic() > deadline:
                    reason = os.fsdecode(errors.text).strip()[-_ERROR:]
                    raise AnsibleConnectionFailure(
                        f"the Slurm step did not start within {limit:.0f} s "
                        f"(ansible_srun_timeout): {reason or 'srun printed nothing'}"
                    )


def _environment() -> dict[str, str]:
    """Return the environment of srun, which it passes to the step.

    PATH lacks the folders of this program, whose Python may not exist on the nodes.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _CLUSTER or not name.startswith(_NOT_PASSED)
    }
    folders = kept.get("PATH", os.defpath).split(os.pathsep)
    of_program = [folder for folder in folders if Path(folder, "ansible-playbook").exists()]
    kept["PATH"] = os.pathsep.join(folder for folder in folders if folder not in of_program)
    return kept


def _send(stream: IO[bytes], data: bytes) -> None:
    """Write a command's input and close it. Ignore errors of a command that does not read it."""
    with contextlib.suppress(OSError), stream:  # it may end before it has read all
        stream.write(data)
