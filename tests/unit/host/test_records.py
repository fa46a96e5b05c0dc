"""Names of jobs and tasks, their order, and the number of restarts."""

from __future__ import annotations

import pytest

from train.host import records


def test_tasks_are_in_the_order_of_their_types_and_numbers() -> None:
    tasks = ["other-0", "worker-10", "evaluator-0", "worker-2", "ps-0", "chief-0", "worker-0"]
    assert sorted(tasks, key=records.task_order) == [
        *("chief-0", "worker-0", "worker-2", "worker-10", "ps-0", "evaluator-0", "other-0"),
    ]


@pytest.mark.parametrize("job", ["a", "night-1", "2025.01_x", "a" * 64])
def test_ids_of_jobs(job: str) -> None:
    assert records.JOB_PATTERN.fullmatch(job)


@pytest.mark.parametrize(
    "job", ["", ".", "..", "-a", ".a", "_a", "a/b", "a b", "a\n", "é", "a" * 65]
)
def test_what_is_no_id_of_a_job(job: str) -> None:
    assert not records.JOB_PATTERN.fullmatch(job)


@pytest.mark.parametrize(
    "task",
    ["worker", "worker-", "worker-01", "worker--1", "master-0", "worker-0/..", "worker-100000"],
)
def test_what_is_no_task(task: str) -> None:
    assert not records.TASK_PATTERN.fullmatch(task)
    assert records.TASK_PATTERN.fullmatch("worker-99999")


def test_only_attempts_that_were_staged_count_as_restarts() -> None:
    def restarts(*staged: bool) -> int:
        return records.restarts_made({"attempts": [{"staged": each} for each in staged]})

    assert [restarts(), restarts(False), restarts(True)] == [0, 0, 0]
    assert restarts(True, False, True) == 1
    assert restarts(True, True, True) == 2


def test_a_user_who_starts_a_job_again_grants_new_restarts() -> None:
    requested = [True, False, False, True, False]
    attempts = [{"staged": True, "requested": each} for each in requested]
    made = [records.restarts_made({"attempts": attempts[:count]}) for count in range(1, 6)]
    assert made == [0, 1, 2, 0, 1]


def test_attempts_with_which_a_job_grew_are_no_restarts() -> None:
    attempts = [{"staged": True}, {"staged": True, "grown": False}, {"staged": True, "grown": True}]
    attempts.append({"staged": True, "preempted": True})
    assert records.restarts_made({"attempts": attempts}) == 1
