"""Tracks whether this control node reaches a job's hosts.

An unreachable host counts as lost only if other hosts of the job confirm it. If no host can be
reached, the watch waits or ends, but the job continues.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from train.gang.errors import WatchEndedError
from train.gang.login_failures import names_of
from train.gang.watch.journal import Journal
from train.gang.watch.polling import Limits
from train.gang.watch.views import View


class Reachability:
    """The state of the connections to the hosts of ``views``.

    Attributes:
        cut_since: the time when the connections to all hosts with unfinished ranks were lost, or
            None if there is a connection.
    """

    def __init__(
        self, views: Sequence[View], limits: Limits, journal: Journal, longest_backoff: float
    ) -> None:
        self._views, self._limits, self._journal = views, limits, journal
        self._longest_backoff = longest_backoff
        self.cut_since: float | None = None
        self._back: tuple[float, float] | None = None  # start and end of the last interruption

    def answered(self, view: View) -> None:
        """Show a notice if a rank's host is reachable again."""
        if self._journal.may_notice_again("unreachable", view.target.host):
            text = f"{view.target.host} can be reached again"
            self._journal.notice("reachable", text, view)

    def check(self, now: float) -> None:
        """Show notices about hosts that have become unreachable or reachable.

        Raise WatchEndedError if there has been no connection to any host for too long.
        """
        limits = self._limits
        waiting = [view for view in self._views if not view.final]
        unresponsive = [view for view in waiting if view.is_unresponsive(now)]
        last_update_at = max(view.last_update_at for view in self._views)
        since = min((view.unresponsive_from(now) for view in unresponsive), default=now)
        names = list(dict.fromkeys(view.target.host for view in unresponsive))
        hosts = names_of(names) if names else ""
        none = bool(unresponsive) and len(unresponsive) == len(waiting)
        if none and limits.disconnected_timeout and now - since > limits.disconnected_timeout:
            raise WatchEndedError(
                f"no connection to {hosts} for {limits.disconnected_timeout:g} s "
                "(train_job_disconnected_timeout)"
            )
        if self.cut_since is not None and (last_update_at > self.cut_since or not none):
            self._back = (self.cut_since, now)
            self._journal.notice("connected", f"connected again after {now - self.cut_since:.0f} s")
            self.cut_since = None
        elif self.cut_since is None and none and last_update_at <= since:
            self.cut_since = since
            clock = time.strftime("%H:%M:%S", time.localtime(time.time() - now + since))
            why = next((f" ({view.error})" for view in unresponsive if view.error), "")
            self._journal.notice(
                "disconnected",
                f"no connection to {hosts} since {clock}{why}; the job is not affected, and the "
                "launcher keeps trying to reconnect",
            )
        if self.cut_since is None:
            limit = min(self._longest_backoff, limits.unreachable_timeout)
            # After an interruption, hosts do not all answer at once.
            settled = self._back is None or now - self._back[1] >= limit
            for view in unresponsive:
                if settled and view.unresponsive_for(now) > limit:
                    host, why = view.target.host, view.error or "no answer"
                    text = f"{host} cannot be reached from here: {why}; the job continues"
                    self._journal.notice("unreachable", text, view, once=host)

    def is_settled(self, now: float) -> bool:
        """Return whether all hosts have reported, or could have, since the last interruption.

        No state is judged before that, because states from before the interruption are outdated.
        """
        if self._back is not None and now - self._back[1] < self._limits.unreachable_timeout:
            if any(not view.final and view.last_update_at < self._back[0] for view in self._views):
                return False
            self._back = None
        return True
