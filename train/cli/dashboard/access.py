"""Who may use the dashboard: its token or password, and the sessions of browsers.

A session is a cookie with its start and a signature, so it survives a restart of the dashboard.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from train.gang import local_paths, run_folders
from train.gang.errors import UserError

#: The folder for the dashboard's files in the folder of results. No job can have this name.
FOLDER = ".dashboard"
TOKEN_FILE = "token"
#: The environment variable with the password.
PASSWORD_VARIABLE = "TRAIN_DASHBOARD_PASSWORD"
#: Seconds after which a browser has to log in again.
SESSION_S = 7 * 86_400.0
#: Minimum number of characters of a password.
PASSWORD_LEAST = 12
LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = ("localhost", LOOPBACK, "[::1]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Access:
    """The rules for requests.

    Attributes:
        token: the secret that signs sessions and, without a password, is part of the address.
        password: required from viewers; empty if the token is.
        bind: the address on which the dashboard listens.
        read_only: whether nothing can be stopped or started.
    """

    token: str
    password: str = ""
    bind: str = LOOPBACK
    read_only: bool = False

    def _sign(self, purpose: str, text: str) -> str:
        # A new password ends all sessions.
        key = f"{self.token}\n{self.password}".encode()
        return hmac.new(key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()

    def new_session(self) -> str:
        """Return the cookie of a new session."""
        began = str(int(time.time()))
        return f"{began}.{self._sign('session', began)}"

    def is_session(self, cookie: str) -> bool:
        """Return whether a cookie is that of a session that has not expired."""
        began, _, signature = cookie.partition(".")
        if not re.fullmatch(r"[0-9]{1,12}", began):
            return False
        is_signed = _equal(signature, self._sign("session", began))
        return is_signed and 0 <= time.time() - int(began) <= SESSION_S

    def form_key(self, cookie: str) -> str:
        """Return the value that each form of a session must send."""
        return self._sign("form", cookie)

    def is_form_key(self, cookie: str, given: str) -> bool:
        """Return whether a form was made for a session."""
        return _equal(given, self.form_key(cookie))

    def is_token(self, given: str) -> bool:
        """Return whether a token opens a session; with a password, none does."""
        return not self.password and _equal(given, self.token)

    def is_password(self, given: str) -> bool:
        """Return whether a password opens a session."""
        return bool(self.password) and _equal(given, self.password)

    def is_host(self, header: str) -> bool:
        """Return whether a ``Host`` header names this dashboard.

        A page of another site, whose name resolves to this machine (DNS rebinding), sends its own
        name. The port is not compared, because ``ssh -L`` may use another one.
        """
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = found[1].lower()
        if self.bind == LOOPBACK:
            return name in _LOOPBACK_NAMES
        is_known = name in _LOOPBACK_NAMES or _is_address(name.strip("[]"))
        return is_known or name in _own_names()


def _equal(one: str, other: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    digests = [hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (one, other)]
    return hmac.compare_digest(*digests)


@functools.cache  # because looking them up may take seconds
def _own_names() -> tuple[str, ...]:
    return socket.gethostname().lower(), socket.getfqdn().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def read_token(runs_dir: Path) -> str:
    """Return the token of the dashboard for a folder of results; create it at first.

    Raise UserError if other users can read or replace it.
    """
    folder = runs_dir / FOLDER
    run_folders.create(folder, exist_ok=True)
    path = folder / TOKEN_FILE
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as stream:
            stream.write(secrets.token_urlsafe(32))
    except FileExistsError:
        pass
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as stream:
        status = os.fstat(stream.fileno())
        token = stream.read(100)
    is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    if not is_private or not _TOKEN.fullmatch(token):
        raise UserError(
            f"{path} must be readable by you only and contain a token: remove it, and a new one "
            "is created"
        )
    return token


def read_password(path: str, environment: Mapping[str, str]) -> str:
    """Return the password for a dashboard that other machines can reach.

    It is the first line of the file ``path``, the value of PASSWORD_VARIABLE, or typed. Raise
    UserError if there is none, if it is too short, or if other users can read the file.
    """
    if path:
        file = local_paths.absolute(path)
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise UserError(f"other users can read {file}: restrict it with `chmod 600 {file}`")
        password = file.read_text(encoding="utf-8").partition("\n")[0]
    elif environment.get(PASSWORD_VARIABLE):
        password = environment[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = getpass.getpass("Password for the dashboard: ")
    else:
        raise UserError(
            "--bind needs a password, because anyone who reaches the address could stop jobs: "
            f"pass --password-file FILE, or set {PASSWORD_VARIABLE}"
        )
    if len(password) < PASSWORD_LEAST:
        raise UserError(f"the password is too short: use {PASSWORD_LEAST} characters or more")
    return password
