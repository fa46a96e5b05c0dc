"""Shows notices to the user while a job is followed, each of them once.

They are about ranks that train alone or do not end, the step at which a restart resumes, and files
that are not fetched or kept completely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from train.gang import cause_names
from train.gang.job_records import read_result
from train.gang.watch import causes, doubts
from train.gang.watch.journal import Journal
from train.gang.watch.polling import BOUNDED, holes_of
from train.gang.watch.views import View, views_in_training
from train.host import rank_files, records
from train.host.progress_records import Progress
from train.host.records import ABSENT

#: Seconds between two lines about the progress of fetching logs.
FETCH_EVERY = 5.0


class Notices:
    """Shows notices about a job's ranks.

    Set ``is_new`` if no earlier watch has received progress of the attempt.
    """

    def __init__(self, views: Sequence[View], journal: Journal, is_new: bool) -> None:
        self._views, self._journal, self._is_new = views, journal, is_new
        self._training = views_in_training(views)
        self._first_step: int | None = None  # of a new attempt
        self._checkpoints = ""  # how often the script saves checkpoints, if reported
        self._fetch_from: int | None = None  # bytes received when only logs were missing
        self._fetch_said = 0.0

    def lingering(self, view: View) -> None:
        """Show a notice about a rank that has made all of its steps but does not end."""
        running = view.state.get("lingering")
        if running and view.phase == records.RUNNING:
            text = (
                f"{view.target.task} ({view.target.host}) made its last step "
                f"{view.state.get('lingering_s', 0.0):.0f} s ago and has not exited; still "
                f"running: {', '.join(running)} (set train_job_exit_timeout to end such ranks)"
            )
            self._journal.notice("lingering", text, view, once=view.target.task)

    def alone(self, view: View) -> None:
        """Show a notice about a rank that trains without the others while the job runs."""
        is_going_on = any(other.phase in records.ALIVE_PHASES for other in self._training)
        if view.state.get("alone") and not view.target.non_training and is_going_on:
            about = f"{view.target.task} ({view.target.host})"
            remedy = causes.remedy_of(cause_names.ALONE, view.target.framework)
            text = f"{about} {doubts.TRAINED_ALONE}; {remedy}"
            self._journal.notice("alone", text, view, once=view.target.task)

    def at_risk(self, view: View) -> None:
        """Show a notice about a host that its cloud may reclaim soon."""
        if view.state.get("at_risk") and not view.state.get("preemption"):
            text = (
                f"{view.target.host}: the cloud warns that it may reclaim this machine; the job "
                "continues until it does"
            )
            self._journal.notice("at_risk", text, view, once=view.target.host)

    def left_out(self, view: View, phase: str, holes: Mapping[str, Sequence[int]]) -> None:
        """Show notices about files of a rank that are not kept or fetched completely.

        ``phase`` and ``holes`` are those of the rank's previous state.
        """
        task, host = view.target.task, view.target.host
        about = f"{task} ({host})"
        for name, what, file in BOUNDED:
            if name in holes_of(view.state) and name not in holes and phase != ABSENT:
                text = (
                    f"{about}: the host keeps only the beginning and the newest part of its {what}"
                )
                text += " (train_job_host_log_limit_mb)"
                self._journal.notice("left_out", text, view, once=f"{task} {name} host")
            if view.left_out.get(name):
                text = (
                    f"{about}: parts of its {what} were not fetched (train_job_log_limit_mb): see "
                )
                text += f"{host}:{view.target.rank_dir}/{file}"
                self._journal.notice("left_out", text, view, once=f"{task} {name}")

    def fetching(self, now: float, views: Sequence[View], say: Callable[[str], None]) -> None:
        """Show at intervals, with ``say``, how much of the remaining logs has been fetched."""
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
        """Show once the first step of a restart, and the last step of the previous attempt."""
        attempt = view.target.attempt
        if view.target.non_training or attempt == 1 or not self._is_new:
            return
        for record in found:
            self._checkpoints = record.get("checkpoints", self._checkpoints)
        if self._first_step is None:
            self._first_step = next((r["step"] for r in found if "step" in r), None)
        if self._first_step is None or any(v.phase == ABSENT for v in self._training):
            return  # the ranks may have different checkpoints
        self._is_new = False
        text = f"attempt {attempt} starts at step {self._first_step}"
        if not any(v.state.get("checkpoint_found") for v in self._views):
            if self._checkpoints:
                text = (
                    f"attempt {attempt} starts from the beginning: no checkpoint had been "
                    "written yet"
                )
                text += f" (one is written {self._checkpoints})"
            else:
                text += ", because TRAIN_CHECKPOINT_DIR was empty"
        elif self._first_step > 1:
            text = f"attempt {attempt} resumes at step {self._first_step}"
        else:
            text += ", although TRAIN_CHECKPOINT_DIR contains files"
        before = (
            read_result(self._journal.run_dir / rank_files.ATTEMPTS_DIR / str(attempt - 1)) or {}
        )
        if before.get("step") is not None:
            text += f"; attempt {attempt - 1} had reached step {before['step']}"
        self._journal.notice("resumed", text)

    def missing_chief(self) -> None:
        """Show a notice that workers with parameter servers count as training without a chief."""
        kinds = {view.target.task.partition("-")[0] for view in self._views}
        if "ps" in kinds and "chief" not in kinds:
            text = (
                "the gang has parameter servers but no chief, so its workers are treated as "
                "training tasks; ParameterServerStrategy needs a chief: add a host to the group "
                "chief"
            )
            self._journal.notice("no_chief", text, once="")
