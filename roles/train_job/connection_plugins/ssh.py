"""Ansible's own ``ssh``, with logins that the inventory hosts of one machine share.

It stands in for ``ansible.builtin.ssh`` under that plugin's short name, with the same options. What
it adds is in train/gang/logins.py: one process at a time logs in to a machine, a login serves eight
commands at once, and a login that sshd refuses because of too many others is tried again. A way to
send files that fails is no warning for each host.
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

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.loader import connection_loader
from ansible.utils.display import Display
from ansible.utils.path import unfrackpath

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import logins

_Core: Any = connection_loader.get("ansible.builtin.ssh", class_only=True)
DOCUMENTATION = sys.modules[_Core.__module__].DOCUMENTATION  # with all options

#: Connection timeouts that a process waits at most for others that log in.
_WAIT = 3
#: The ways in which files are sent, in the order in which they are tried, and what is printed once
#: one has failed and a later one has not.
_TRANSFERS = ("sftp", "scp", "piped")
_TALKATIVE = (
    "a login prints text, so sftp does not work and files are sent in another way: let ~/.bashrc "
    "print only in interactive shells (the doctor names the hosts)"
)
_PATH = re.compile(rb"(ControlPath=.*?)(\"?)", re.DOTALL | re.IGNORECASE)
_OPTION = re.compile(r"(\w+)\s*[=\s]\s*(.*)", re.DOTALL)

display = Display()


def _options(command: Sequence[bytes]) -> dict[str, str]:
    """Return the options that ``-o`` gives to ssh, by their names in lower case."""
    found: dict[str, str] = {}
    for flag, word in itertools.pairwise(command):
        text = word if flag == b"-o" else flag[2:] if flag.startswith(b"-o") else b""
        option = _OPTION.fullmatch(os.fsdecode(text))
        if option:
            found.setdefault(option[1].lower(), option[2].strip('"'))  # the first one holds
    return found


class Connection(_Core):  # type: ignore[misc]
    """A connection whose commands share the logins of their machine."""

    #: Hands a password to ``sshpass``.
    sshpass_pipe: tuple[int, int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._login = 0
        self._in_session = False

    def exec_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command on the host."""
        with self._session():
            return super().exec_command(*args, **kwargs)

    def put_file(self, *args: Any, **kwargs: Any) -> Any:
        """Copy a file to the host."""
        with self._session():
            return super().put_file(*args, **kwargs)

    def fetch_file(self, *args: Any, **kwargs: Any) -> Any:
        """Copy a file from the host."""
        with self._session():
            return super().fetch_file(*args, **kwargs)

    def reset(self) -> None:
        """End all logins to the machine once their commands have ended."""
        self.host = self.get_option("host") or self._play_context.remote_addr
        shared = self._logins()
        for self._login in range(shared.count() if shared else 1):
            super().reset()
        self._login = 0

    def _file_transport_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send or fetch a file. Ansible would warn of each host and each way that fails."""
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
        """Hold a place in a login to the machine, which is made unless it exists."""
        if self._in_session:  # a file is copied with commands
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
                self._log_in(shared)
                yield
            finally:
                self._in_session, self._login = False, 0

    def _logins(self) -> logins.Logins | None:
        """Return the logins to the machine, None if ssh is not set to share them."""
        options = _options(self._ssh())
        path = options.get("controlpath", "none")
        persists = options.get("controlpersist", "no") not in ("no", "false")
        is_shared = options.get("controlmaster", "no") in ("auto", "autoask", "yes", "ask")
        if path == "none" or not (persists and is_shared):
            return None
        place = [path, self.host, options.get("port", ""), options.get("user", "")]
        folder = Path(unfrackpath(self.get_option("control_path_dir")), "logins")
        try:
            return logins.Logins(folder, " ".join(map(str, place)))
        except OSError:
            return None

    def _log_in(self, shared: logins.Logins) -> None:
        """Make the login unless it exists. AnsibleConnectionFailure: it was refused."""
        if self._exists():
            return
        wait = _WAIT * float(self.get_option("timeout"))
        try:
            error = shared.log_in(self._exists, self._connect_login, wait)
        except OSError:  # it cannot be locked: the command logs in itself
            return
        if error:
            raise AnsibleConnectionFailure(error)

    def _exists(self) -> bool:
        """Return whether the login exists."""
        check = self._ssh("-O", "check", self.host)
        try:
            done = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError:  # the program is missing; the command reports that
            return False
        return done.returncode == 0

    def _connect_login(self) -> str:
        """Log in for the commands that follow, and return why that failed."""
        # In the background, without a command. Ports are forwarded by the command that needs them.
        words = ("-f", "-N", "-o", "ClearAllForwardings=yes", self.host)
        command = self._build_command(self.get_option("ssh_executable"), "ssh", *words)
        try:
            # An exit code other than 255 is of an ssh that cannot do this: the command logs in.
            self._run(command, None, sudoable=False, checkrc=False)
        except AnsibleConnectionFailure as error:
            return str(error)
        return ""

    def _ssh(self, *words: str) -> list[bytes]:
        """Return a command of ssh itself, without the program that gives it a password."""
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
        """Have a command use the login that this connection has a place in. The path of the first
        login is as Ansible or the user has chosen it.
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
        """Run ssh, sftp or scp; again, as long as a login is refused because of too many others."""
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
                    display.vvv(f"a login was refused: again in {pause:.1f} s", host=self.host)
                    time.sleep(pause)
                    self._renew_password(cmd)
                    continue
            if in_data and checkrc:
                raise AnsibleConnectionFailure(
                    f"Failed to connect to the host via ssh: {os.fsdecode(errors).rstrip()}"
                )
            return code, output, errors

    def _with_reason(self, errors: bytes) -> bytes:
        """Return the errors of a login that ended with the program of ``ProxyCommand`` or
        ``ProxyJump``, with what that program prints. Of a shared login, ssh does not show it.
        """
        if b" UNKNOWN port " not in errors:
            return errors
        program = self.get_option("ssh_executable")
        command: list[bytes] = self._build_command(program, "ssh", self.host, "true")
        place = command.index(os.fsencode(program)) + 1
        command[place:place] = [b"-o", b"ControlPath=none"]  # the first one holds
        code, _, reason = super()._bare_run(command, None, sudoable=False, checkrc=False)
        return reason if code == 255 else errors

    def _renew_password(self, cmd: list[bytes]) -> None:
        """Have a command that runs again get its password once more."""
        if cmd[0] == b"sshpass":
            self.sshpass_pipe = os.pipe()
            cmd[1] = b"-d%d" % self.sshpass_pipe[0]
