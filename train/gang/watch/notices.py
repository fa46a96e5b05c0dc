"""What people are told of the ranks while a job is followed, each thing once: a rank that trains
alone or does not end, where a further attempt begins, and what is not fetched or kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from train.gang.records import read_result
from train.gang.watch import causes, doubts
from train.gang.watch.journal import Journal
from train.gang.watch.polling import BOUNDED, holes_of
from train.gang.watch.views import View, views_in_training
from train.host import ranks as host_ranks
from train.host import records
from train.host.records import Progress

#: Seconds between two lines about how much of the logs is fetched.
FETCH_EVERY = 5.0


class Notices:
    """The notices about the ranks of a job; ``is_new``: no watch has seen a step of it."""

    def __init__(self, views: Sequence[View], journal: Journal, is_new: bool) -> None:
        self._views, self._journal, self._is_new = views, journal, is_new
        self._training = views_in_training(views)
        self._first_step: int | None = None  # of a new attempt
        self._checkpoints = ""  # how often its script makes some, as far as it reports
        self._fetch_from: int | None = None  # bytes that had come when only logs were waited for
        self._fetch_said = 0.0

    def lingering(self, view: View) -> None:
        """Notice a rank that has made all of its steps, and does not end."""
        running = view.state.get("lingering")
        if running and view.phase == records.RUNNING:
            text = (
                f"{view.target.task} ({view.target.host}) made its last step "
                f"{view.state.get('lingering_s', 0.0):.0f} s ago and has not ended: "
                f"{', '.join(running)} still runs (train_job_exit_timeout can end it)"
            )
            self._journal.notice("lingering", text, view, once=view.target.task)

    def alone(self, view: View) -> None:
        """Notice a rank that makes steps by itself, while the job runs."""
        is_going_on = any(other.phase in records.ALIVE_PHASES for other in self._training)
        if view.state.get("alone") and not view.target.non_training and is_going_on:
            about = f"{view.target.task} ({view.target.host})"
            remedy = causes.CAUSES[causes.ALONE].remedy
            text = f"{about} {doubts.TRAINED_ALONE}; {remedy}"
            self._journal.notice("alone", text, view, once=view.target.task)

    def left_out(self, view: View, phase: str, holes: Mapping[str, Sequence[int]]) -> None:
        """Notice that a file is not kept or fetched as a whole; the arguments after the rank are
        those of its state before.
        """
        task, host = view.target.task, view.target.host
        about = f"{task} ({host})"
        for name, what, file in BOUNDED:
            if name in holes_of(view.state) and name not in holes and phase != host_ranks.ABSENT:
                text = (
                    f"{about}: the host keeps only the beginning and the newest part of its {what}"
                )
                text += " (train_job_host_log_limit_mb)"
                self._journal.notice("left_out", text, view, once=f"{task} {name} host")
            if view.left_out.get(name):
                text = (
                    f"{about}: parts of its {what} are not fetched (train_job_log_limit_mb): see "
                )
                text += f"{host}:{view.target.rank_dir}/{file}"
                self._journal.notice("left_out", text, view, once=f"{task} {name}")

    def fetching(self, now: float, views: Sequence[View], say: Callable[[str], None]) -> None:
        """Show with ``say`` now and then how much of the logs of ranks that have ended has come."""
        left, received = sum(view.left for view in views), sum(view.received for view in views)
        if not left:
            self._fetch_from = None
            return
        if self._fetch_from is None:
            self._fetch_from, self._fetch_said = received, now
        if now - self._fetch_said >= FETCH_EVERY:
            self._fetch_said = now
            done = received - self._fetch_from
            of = (done + left) / 1e6
            text = f"fetching logs: {done / 1e6:.0f} of {of:.0f} MB"
            say(text)
            self._journal.write(notice={"kind": "fetching", "task": None, "text": text})

    def resumed(self, view: View, found: Sequence[Progress]) -> None:
        """Notice at which step a further attempt begins, and how far the one before had come."""
        attempt = view.target.attempt
        if view.target.non_training or attempt == 1 or not self._is_new:
            return
        for record in found:
            self._checkpoints = record.get("checkpoints", self._checkpoints)
        if self._first_step is None:
            self._first_step = next((r["step"] for r in found if "step" in r), None)
        if self._first_step is None or any(v.phase == host_ranks.ABSENT for v in self._training):
            return  # the ranks may have different checkpoints
        self._is_new = False
        text = f"attempt {attempt} starts at step {self._first_step}"
        if not any(v.state.get("checkpoint_found") for v in self._views):
            if self._checkpoints:
                text = f"attempt {attempt} starts from the beginning: there was no checkpoint yet"
                text += f" (one is made {self._checkpoints})"
            else:
                text += ", as nothing was left in TRAIN_CHECKPOINT_DIR"
        elif self._first_step > 1:
            text = f"attempt {attempt} resumes at step {self._first_step}"
        else:
            text += ", though there are files in TRAIN_CHECKPOINT_DIR"
        before = read_result(self._journal.run_dir / records.ATTEMPTS_DIR / str(attempt - 1)) or {}
        if before.get("step") is not None:
            text += f"; attempt {attempt - 1} had reached step {before['step']}"
        self._journal.notice("resumed", text)

    def missing_chief(self) -> None:
        """Notice that workers of parameter servers count as training, as there is no chief."""
        kinds = {view.target.task.partition("-")[0] for view in self._views}
        if "ps" in kinds and "chief" not in kinds:
            text = (
                "the gang has parameter servers and no chief, so its workers count as training; "
                "ParameterServerStrategy needs a chief: add a host to the group chief"
            )
            self._journal.notice("no_chief", text, once="")
