"""Which failures are worth another try."""

from __future__ import annotations

import re

import pytest

from tests.support.lab import REPOSITORY
from train.gang.watch import causes
from train.gang.watch.causes import Failure, why_not_again
from train.host import ends


def failure(
    cause: str, code: int | None = None, reason: str = "", step: int | None = 40
) -> Failure:
    return Failure(cause, "worker-1", code, reason, step)


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        (failure(ends.EXIT, 143), True),
        (failure(ends.EXIT, 1, "exited with code 1: UnavailableError: Socket closed"), True),
        (failure(ends.EXIT, 1, "exited with code 1: ConnectionResetError: [Errno 104]"), True),
        (failure(ends.EXIT, 1, "exited with code 1: ModuleNotFoundError: No module"), False),
        (failure(ends.EXIT, 1, "exited with code 1: ValueError: shapes"), False),
        (failure(ends.EXIT, 2), False),
        (failure(ends.DOWNLOAD, 1, step=None), False),
        (failure(ends.DOWNLOAD, 1, step=40), True),
    ],
)
def test_worth_another_try(failed: Failure, again: bool) -> None:
    why = why_not_again(failed, None, 0, 3)
    assert (not why) is again
    assert why in ("", "it would fail in the same way again")


def test_the_page_says_of_every_cause_whether_it_is_tried_again() -> None:
    page = (REPOSITORY / "docs/supervision.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|.*\| (yes|no|if .*|no, unless .*) \|$", page, re.MULTILINE)
    tried = {cause: again for names, again in rows for cause in re.findall(r"\w+", names)}
    assert set(tried) == set(causes.CAUSES)
    for cause, again in tried.items():
        assert failure(cause).again is (again == "yes") or "if" in again or "unless" in again
        assert failure(cause).remedy


def test_a_package_that_is_missing_is_named() -> None:
    reason = "exited with code 1: ModuleNotFoundError: No module named 'pandas.core'"
    assert failure(ends.EXIT, 1, reason).remedy.startswith("bring pandas: its package as in")
    assert failure(ends.EXIT, 1, "exited with code 1: KeyError").remedy.startswith("fix the script")


def test_the_same_step_twice_is_the_jobs_own_fault() -> None:
    killed = failure(ends.MEMORY, -9)
    assert why_not_again(killed, killed, 1, 3) == "it has failed at step 40 in the same way twice"
    assert why_not_again(killed, failure(ends.MEMORY, -9, step=20), 1, 3) == ""
    failed = failure(ends.INTERNAL)
    assert "at step 40 in the same way twice" in why_not_again(failed, failed, 1, 3)
    crashed = failure(ends.SIGNAL, -11, step=None)
    assert "at the start in the same way twice" in why_not_again(crashed, crashed, 1, 3)


def test_what_comes_from_outside_may_hit_the_same_step_twice() -> None:
    for failed in (failure(ends.SIGNAL, -9), failure(causes.UNREACHABLE), failure(ends.EXIT, 143)):
        assert why_not_again(failed, failed, 1, 3) == ""


def test_the_limit_is_told() -> None:
    told = why_not_again(failure(ends.SIGNAL, -9), None, 3, 3)
    assert told == "it was started again 3 times, the limit is 3 (train_job_max_restarts)"
