"""Ansible's ``ssh`` plugin, with logins shared by the inventory hosts of a machine.

It replaces ``ansible.builtin.ssh`` under its short name and has the same options. It adds the
following, see train/gang/logins.py. Only one process at a time logs in to a machine, and only a
limited number of logins begin at once. A login serves up to eight commands at once. If sshd refuses
a login because there are too many at once, it is tried again. Failed transfer methods do not cause
a warning for each host.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.loader import connection_loader
from ansible.utils.display import Display
from ansible.utils.path import unfrackpath

from train.gang import logins

_Core: Any = connection_loader.get("ansible.builtin.ssh", class_only=True)
DOCUMENTATION = sys.modules[_Core.__module__].DOCUMENTATION  # with all options

#: Maximum number of connection timeouts that a process waits for the logins of others.
_WAIT = 3
#: The methods to send files, in the order of attempts, and the message if an earlier one failed and
#: a later one succeeded.
_TRANSFERS = ("sftp", "scp", "piped")
_TALKATIVE = (
    "the host prints text at login, so sftp does not work and files are transferred in another "
    "way: let ~/.bashrc print only in interactive shells (the doctor lists such hosts)"
)
_PATH = re.compile(rb"(ControlPath=.*?)(\"?)", re.DOTALL | re.IGNORECASE)
#: Parts of a control path that only ssh can expand.
_TOKENS = re.compile(r"[%$~]")
_OPTION = re.compile(r"(\w+)\s*[=\s]\s*(.*)", re.DOTALL)

display = Display()


def _options(command: Sequence[bytes]) -> dict[str, str]:
    """Return the options given to ssh with ``-o``, by lower-case name."""
    found: dict[str, str] = {}
    for flag, word in itertools.pairwise(command):
        text = word if flag == b"-o" else flag[2:] if flag.startswith(b"-o") else b""
        option = _OPTION.fullmatch(os.fsdecode(text))
        if option:
            found.setdefault(option[1].lower(), option[2].strip('"'))  # the first one counts
    return found


class Connection(_Core):  # type: ignore[misc]
    """A connection whose commands share the logins of their machine."""

    #: Passes a password to ``sshpass``.
    sshpass_pipe: tuple[int, int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._login = 0
        self._in_session = False
        self._is_new = False  # whether this session has begun with a login

    def exec_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command on the host."""
        with self._session():
            return super().exec_command(*args, **kwargs)

    def log_in(self) -> bool:
        """Log in for the commands that follow, unless there is a login already.

        Return whether there is a new login that they share. Raise AnsibleConnectionFailure if it is
        refused.
        """
        with self._session():
            return self._is_new and self._exists()

    @contextlib.contextmanager
    def process(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command on the host and yield the process of ssh, which the caller must end.

        Its standard input and output are pipes. Raise AnsibleError if the login fails, or if ssh is
        not set to share logins.
        """
        with self._session():
            if not self._in_session:
                raise AnsibleError("ssh is not set to share logins")
            # No terminal, whatever the user's options are: of -t and -T, the last one counts.
            words = self._ssh("-T", self.host, command)
            # If the login has ended meanwhile, ssh must not ask for a password.
            words[1:1] = [b"-o", b"BatchMode=yes", b"-o", b"ControlMaster=no"]
            pipe = subprocess.PIPE
            yield subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def put_file(self, *args: Any, **kwargs: Any) -> Any:
        """Copy a file to the host."""
        with self._session():
            return super().put_file(*args, **kwargs)

    def fetch_file(self, *args: Any, **kwargs: Any) -> Any:
        """Copy a file from the host."""
        with self._session():
            return super().fetch_file(*args, **kwargs)

    def reset(self) -> None:
        """End all logins to the machine after their commands have ended."""
        self.host = self.get_option("host") or self._play_context.remote_addr
        shared = self._logins()
        for self._login in range(shared.count() if shared else 1):
            super().reset()
        self._login = 0

    def _file_transport_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send or fetch a file, without Ansible's warning for each method that fails on a host."""
        if self.get_option("ssh_transfer_method") != "smart":
            return super()._file_transport_command(*args, **kwargs)
        try:
            for method in _TRANSFERS:
                self.set_option("ssh_transfer_method", method)
                try:
                    done = super()._file_transport_command(*args, **kwargs)
                except AnsibleError:
                    if method == _TRANSFERS[-1]:
                        raise
                else:
                    if method != _TRANSFERS[0]:
                        display.warning(_TALKATIVE)
                    return done
        finally:
            self.set_option("ssh_transfer_method", "smart")

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """Occupy one of the places in a login to the machine, and log in if necessary."""
        if self._in_session:  # copying a file runs commands
            yield
            return
        self.host = self.get_option("host") or self._play_context.remote_addr
        shared = self._logins()
        if shared is None:
            yield
            return
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # without locks, all commands share the first one
                self._login = held.enter_context(shared.session())
            self._in_session = True
            try:
                self._is_new = self._log_in(shared)
                yield
            finally:
                self._in_session, self._is_new, self._login = False, False, 0

    def _logins(self) -> logins.Logins | None:
        """Return the logins to the machine, or None if ssh is not set to share them."""
        options = _options(self._ssh())
        path = options.get("controlpath", "none")
        persists = options.get("controlpersist", "no") not in ("no", "false")
        is_shared = options.get("controlmaster", "no") in ("auto", "autoask", "yes", "ask")
        if path == "none" or not (persists and is_shared):
            return None
        place = [path, self.host, options.get("port", ""), options.get("user", "")]
        try:
            return logins.Logins(self._locks(), " ".join(map(str, place)))
        except OSError:
            return None

    def _locks(self) -> Path:
        """Return the folder of the locks for logins."""
        return Path(unfrackpath(self.get_option("control_path_dir")), "logins")

    def _log_in(self, shared: logins.Logins) -> bool:
        """Log in if necessary, and return whether it was.

        Raise AnsibleConnectionFailure if the login is refused.
        """
        if self._exists():
            return False
        wait = _WAIT * float(self.get_option("timeout"))
        try:
            with logins.turn(self._locks(), self.host):
                error = shared.log_in(self._exists, self._connect_login, wait)
        except OSError:  # cannot be locked: the command logs in itself
            return True
        if error:
            raise AnsibleConnectionFailure(error)
        return True

    def _exists(self) -> bool:
        """Return whether the login that this connection uses exists."""
        path = _options(self._ssh()).get("controlpath", "")
        if path and not _TOKENS.search(path):
            return logins.is_shared(Path(path))
        check = self._ssh("-O", "check", self.host)
        try:
            done = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError:  # the program is missing; the command reports that
            return False
        return done.returncode == 0

    def _connect_login(self) -> str:
        """Log in for the commands that follow; return the error, or an empty string."""
        # In the background, without a command. The command that needs forwarded ports forwards
        # them.
        words = ("-f", "-N", "-o", "ClearAllForwardings=yes", self.host)
        command = self._build_command(self.get_option("ssh_executable"), "ssh", *words)
        try:
            # Any exit code except 255 means that this ssh cannot do it: the command logs in.
            self._run(command, None, sudoable=False, checkrc=False)
        except AnsibleConnectionFailure as error:
            return str(error)
        return ""

    def _ssh(self, *words: str) -> list[bytes]:
        """Return a command for ssh itself, without the program that passes a password to it."""
        program = self.get_option("ssh_executable")
        command: list[bytes] = self._build_command(program, "ssh", *words)
        if command[0] == b"sshpass":
            for end in self.sshpass_pipe or ():
                os.close(end)
            self.sshpass_pipe = None
        return command[command.index(os.fsencode(program)) :]

    def _build_command(self, binary: str, subsystem: str, *other_args: Any) -> list[bytes]:
        return self._numbered(super()._build_command(binary, subsystem, *other_args))

    def _numbered(self, command: list[bytes]) -> list[bytes]:
        """Make a command use the login of this connection.

        The first login uses the control path that Ansible or the user has chosen. For the others, a
        number is appended to it.
        """
        for index, word in enumerate(command if self._login else ()):
            path = _PATH.fullmatch(word)
            if path:
                command[index] = b"%s-%d%s" % (path[1], self._login, path[2])
                break
        return command

    def _bare_run(
        self, cmd: list[bytes], in_data: bytes | None, sudoable: bool = True, checkrc: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run ssh, sftp or scp. Repeat this if the login is refused because there are too many."""
        pauses = logins.pauses(float(self.get_option("timeout")))
        while True:
            run = super()._bare_run(cmd, in_data, sudoable=sudoable, checkrc=False)
            code, output, errors = run
            if code != 255:
                return code, output, logins.without_notes(errors)
            if logins.is_worth_another_try(os.fsdecode(errors)) and not output:
                errors = self._with_reason(errors)
                again = logins.is_worth_another_try(os.fsdecode(errors))
                pause = next(pauses, None) if again else None
                if pause is not None:
                    display.vvv(
                        f"the login was refused; trying again in {pause:.1f} s", host=self.host
                    )
                    time.sleep(pause)
                    self._renew_password(cmd)
                    continue
            if in_data and checkrc:
                raise AnsibleConnectionFailure(
                    f"Failed to connect to the host via ssh: {os.fsdecode(errors).rstrip()}"
                )
            return code, output, errors

    def _with_reason(self, errors: bytes) -> bytes:
        """Return a failed login's errors, including those of its ``ProxyCommand`` or ``ProxyJump``.

        For a shared login, ssh does not show the latter, so it is run again without sharing.
        """
        if b" UNKNOWN port " not in errors:
            return errors
        program = self.get_option("ssh_executable")
        command: list[bytes] = self._build_command(program, "ssh", self.host, "true")
        place = command.index(os.fsencode(program)) + 1
        command[place:place] = [b"-o", b"ControlPath=none"]  # the first one counts
        code, _, reason = super()._bare_run(command, None, sudoable=False, checkrc=False)
        return reason if code == 255 else errors

    def _renew_password(self, cmd: list[bytes]) -> None:
        """Provide the password for another run of a command."""
        if cmd[0] == b"sshpass":
            self.sshpass_pipe = os.pipe()
            cmd[1] = b"-d%d" % self.sshpass_pipe[0]
