"""The user whose logins these are, and working as that user."""

from __future__ import annotations

import contextlib
import os
import pwd
from typing import Iterator

from .files import ProblemError


def find_user(name: str, required: bool) -> "pwd.struct_passwd | None":
    """Return the user ``name``, or the one who logged in; None if there is none.

    Raises:
        ProblemError: the user is required and missing, or the rights to work as the user are.
    """
    uid = os.geteuid()
    if not name:
        name = os.environ.get("SUDO_USER", "") if uid == 0 else ""
        name = name or pwd.getpwuid(uid).pw_name
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        if not required:
            return None
        raise ProblemError("there is no user %s on this host: make it first" % name) from None
    if uid not in (0, user.pw_uid):
        mine = pwd.getpwuid(uid).pw_name
        raise ProblemError("user %s cannot work as %s: become root" % (mine, name))
    return user


@contextlib.contextmanager
def working_as(user: "pwd.struct_passwd | None") -> Iterator[None]:
    """Give up root's rights for a time: the home is the user's, and so is every link in it."""
    if user is None or os.geteuid() == user.pw_uid:
        yield
        return
    groups = os.getgroups()
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
