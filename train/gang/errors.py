"""Errors that several modules of this package raise or catch."""

from __future__ import annotations


class PlanError(Exception):
    """The user can remedy it. The message is for the user."""


class NothingAnsweredError(PlanError):
    """No host of a play answered. The results of an earlier task have the reasons."""


class UnreachableError(Exception):
    """A host cannot be reached."""


class WatchEndedError(Exception):
    """The watch ends, but the job continues."""


class BusyError(Exception):
    """Another process already follows the job."""
