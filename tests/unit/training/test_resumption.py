"""All cases of the decision whether a run resumes from a checkpoint."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.support.training_ranks import TRAIN


@pytest.fixture
def resumption(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TRAIN)
    return importlib.import_module("training.resumption")


#: By --resume and attempt: the resumption, whether the job started a new run, and the decisions on
#: a checkpoint that fits and on one that does not. In each pair, the first decision is for a
#: checkpoint of a new run that the job started, the second for any other. The last pair of
#: decisions is that of a rank that writes checkpoints.
CASES = [
    ("auto", 1, "NEWEST", False, "USE USE", "REFUSE REFUSE", "REFUSE REFUSE"),
    ("required", 1, "REQUIRED", False, "USE USE", "REFUSE REFUSE", "REFUSE REFUSE"),
    ("auto", 2, "CONTINUED", False, "USE USE", "PASS_OVER PASS_OVER", "REFUSE REFUSE"),
    ("required", 3, "CONTINUED", False, "USE USE", "PASS_OVER PASS_OVER", "REFUSE REFUSE"),
    ("never", 1, "NONE", True, *["START_OVER START_OVER"] * 3),
    ("never", 2, "SAME_JOB", True, "USE SKIP", "PASS_OVER SKIP", "REFUSE SKIP"),
]


@pytest.mark.parametrize(("resume", "attempt", "name", "new", "fits", "other", "writer"), CASES)
def test_every_checkpoint_has_one_decision(
    resumption: Any,
    resume: str,
    attempt: int,
    name: str,
    new: bool,
    fits: str,
    other: str,
    writer: str,
) -> None:
    chosen = resumption.choose_resumption(resume, attempt)
    assert (chosen.name, chosen.is_new_run) == (name, new)
    for is_writer in (False, True):
        for is_fitting, decisions in ((True, fits), (False, writer if is_writer else other)):
            taken = [
                chosen.decide(is_from_job=is_from_job, fits=is_fitting, is_writer=is_writer).name
                for is_from_job in (True, False)
            ]
            assert taken == decisions.split()
