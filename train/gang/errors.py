"""Errors that several modules of this package raise or catch."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can remedy. Its message is for the user."""


class NothingAnsweredError(UserError):
    """No host of a play answered. The results of an earlier task have the reasons."""


class UnreachableError(Exception):
    """A host cannot be reached. ``kind`` is the kind of a failed login, or empty."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class WatchEndedError(UserError):
    """The watch ends, but the job continues."""


class BusyError(UserError):
    """Another process already follows the job."""
