"""Decides whether a run resumes from a checkpoint, depending on --resume and the attempt."""

from __future__ import annotations

import enum


class Decision(enum.Enum):
    """The decision of a rank about a checkpoint."""

    #: Offer it to the gang.
    USE = "use"
    #: End all ranks with an error, because it was made with other options or data.
    REFUSE = "refuse"
    #: Begin at step 0, and replace the checkpoint if there is one.
    START_OVER = "start over"
    #: Try the next older one, with a warning.
    PASS_OVER = "pass over"
    #: Try the next older one.
    SKIP = "skip"


class Resumption(enum.Enum):
    """The checkpoints from which an attempt of a job may resume.

    A job's later attempts have the options of its first one.
    """

    #: The newest one.
    NEWEST = "newest"
    #: The newest one. The run cannot begin without a checkpoint.
    REQUIRED = "required"
    #: The newest one that fits, in a later attempt.
    CONTINUED = "continued"
    #: None: the first attempt starts a new run.
    NONE = "none"
    #: Those of the new run that an earlier attempt of the job started.
    SAME_JOB = "same job"

    @property
    def is_new_run(self) -> bool:
        """Whether the job started a new run (--resume never)."""
        return self in (Resumption.NONE, Resumption.SAME_JOB)

    def decide(self, *, is_from_job: bool, fits: bool, is_writer: bool) -> Decision:
        """Return the decision about a checkpoint.

        Args:
            is_from_job: the checkpoint is from a new run that this job started.
            fits: the checkpoint was made with the same options and data.
            is_writer: this rank writes checkpoints.
        """
        if self is Resumption.NONE:
            return Decision.START_OVER
        if self is Resumption.SAME_JOB and not is_from_job:
            return Decision.SKIP
        if fits:
            return Decision.USE
        if self in (Resumption.NEWEST, Resumption.REQUIRED):
            return Decision.REFUSE
        # The checkpoint is from another job, because all attempts of a job have the same options. A
        # rank that writes checkpoints refuses it, because it would remove it later.
        return Decision.REFUSE if is_writer else Decision.PASS_OVER


def choose_resumption(resume: str, attempt: int) -> Resumption:
    """Return the checkpoints from which an attempt may resume.

    ``resume`` is auto, required or never; ``attempt`` counts from 1.
    """
    if resume == "never":
        return Resumption.NONE if attempt == 1 else Resumption.SAME_JOB
    if attempt > 1:
        return Resumption.CONTINUED
    return Resumption.REQUIRED if resume == "required" else Resumption.NEWEST
