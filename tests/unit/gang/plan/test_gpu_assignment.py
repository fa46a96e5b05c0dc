"""The GPUs that the plan assigns to each rank."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.gpus import MIG, UUIDS, gang
from train.gang.errors import UserError

TWO, THREE = {"worker": ["a", "b"]}, {"worker": ["a", "b", "c"]}
ALL = {"chief": ["c"], "worker": ["w"], "ps": ["p"], "evaluator": ["e"]}
NAMED = {"a": [MIG[0]], "b": [MIG[1]]}


@pytest.mark.parametrize(
    ("groups", "wanted", "machine", "shares"),
    [
        (TWO, {}, {}, {"a": "01", "b": "23"}),
        (TWO, {}, {"count": 5}, {"a": "01", "b": "23"}),  # even shares
        (TWO, {}, {"count": 2, "machines": {"b": "N"}}, {"a": "01", "b": "01"}),
        ({"worker": ["b"], "chief": ["a"]}, {}, {"count": 2}, {"a": "0", "b": "1"}),
        # Only ranks that train get a share.
        (ALL, {}, {"count": 2}, {"c": "0", "w": "1", "p": "", "e": ""}),
        (ALL, {"e": [0], "c": "none"}, {"count": 3}, {"c": "", "w": "12", "p": "", "e": "0"}),
        # Ranks get the GPUs that they name.
        (THREE, {"b": [1]}, {}, {"a": "0", "b": "1", "c": "2"}),
        (THREE, {"b": ["3", 0]}, {}, {"a": "1", "b": "30", "c": "2"}),
        (THREE, {"a": [], "b": "none"}, {}, {"a": "", "b": "", "c": "0123"}),
        # CUDA needs a list of only indices or only UUIDs.
        (TWO, {"b": [UUIDS[3], 0]}, {}, {"a": "12", "b": [UUIDS[3], UUIDS[0]]}),
        (TWO, {"b": None}, {"count": 1}, {"a": "0", "b": None}),  # b is not assigned any
        (TWO, {"b": "none"}, {"count": 0}, {"a": None, "b": None}),
        # Instances of one GPU can be shared by name.
        (THREE, NAMED, {"count": 2, "instances": 2}, {"a": MIG[:1], "b": MIG[1:], "c": "1"}),
    ],
)
def test_the_gpus_of_a_machine_are_shared(
    groups: dict[str, list[str]], wanted: Any, machine: Any, shares: dict[str, Any]
) -> None:
    expected = {host: None if own is None else tuple(own) for host, own in shares.items()}
    assert gang(groups, wanted, **machine) == expected


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"b": [4]},
        4,
        "b contains GPU 4, which does not exist: its machine has GPUs 0, 1, 2, 3 (nv",
    ),
    (
        {"a": ["GPU-x"]},
        1,
        "of a contains GPU GPU-x, which does not exist: its machine has GPU 0 (",
    ),
    ({"a": [0]}, 0, "of a contains GPU 0, which does not exist: its machine has no GPUs (nvidia"),
    (
        {"a": [0, 1], "b": [1]},
        4,
        "a requests GPU 1, and b requests GPU 1 on the same machine, but only",
    ),
    ({"a": [0], "b": [UUIDS[0]]}, 4, "a requests GPU 0, and b requests GPU 0 on the same machine"),
    ({"a": [2, "2"]}, 4, "a lists GPU 2 twice"),
    (
        {"a": [0], "b": [MIG[1]]},
        1,
        f"a requests GPU 0, and b requests {MIG[1]} of GPU 0 on the same",
    ),
    ({}, 1, "a, b: too few GPUs for 2 ranks on one machine, which has 1 GPU: to train"),
    ({"c": [1, 2]}, 3, "a, b: too few GPUs for 2 ranks on one machine, which has 3 GPUs, 2 of"),
    ({"a": [0, 1]}, 2, "b: too few GPUs for 1 rank on one machine, which has 2 GPUs, 2 of"),
    ({"a": "0,1"}, 4, "train_job_gpus of a is '0,1': use auto, none, or a list of indices or"),
    ({"a": [True]}, 4, "train_job_gpus of a is [True]"),
    ({"a": 1}, 4, "train_job_gpus of a is 1: use"),
]


@pytest.mark.parametrize(("wanted", "count", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_gpus_that_cannot_be_given(wanted: dict[str, Any], count: int, message: str) -> None:
    groups = {"worker": ["a", "b"], "evaluator": ["c"]}
    with pytest.raises(UserError, match=re.escape(message)):
        gang(groups, wanted, count, instances=2 if count else 0)


def busy(why: str, waits: bool = False) -> dict[str, Any]:
    return {"why": why, "remedy": "REMEDY", "waits": waits}


WORKERS = {"worker": ["a", "b"]}


def test_auto_leaves_out_what_others_use() -> None:
    found = gang(WORKERS, {}, busy={UUIDS[0]: busy("in use")})
    assert found == {"a": ("1",), "b": ("2",)}, "3 are left, even shares"
    found = gang(WORKERS, {}, instances=2, busy={MIG[1]: busy("in use")})
    assert found == {"a": ("1",), "b": ("2",)}, "a GPU of which a part is in use"


def test_a_job_that_waits_takes_free_ones_and_else_waits_for_all() -> None:
    waits = {UUIDS[i]: busy("in use", waits=True) for i in (0, 1)}
    assert gang(WORKERS, {}, busy=waits) == {"a": ("2",), "b": ("3",)}
    waits[UUIDS[2]] = waits[UUIDS[0]]
    assert gang(WORKERS, {}, busy=waits) == {"a": ("0", "1"), "b": ("2", "3")}
    assert gang(WORKERS, {"b": [0]}, busy=waits) == {"a": ("3",), "b": ("0",)}


X, FEW = busy("in use by X"), "too few GPUs are free. The machine has 2 GPUs"

IN_USE: list[tuple[Any, Any, int, str]] = [
    ({"b": [0]}, {UUIDS[0]: X}, 4, "b requests GPU 0, which is in use by X: REMEDY"),
    ({"b": [UUIDS[0]]}, {MIG[0]: X}, 4, "b requests GPU 0, which is in use by X: REMEDY"),
    ({"b": [MIG[0]]}, {UUIDS[0]: X}, 4, f"b requests {MIG[0]} of GPU 0, which is"),
    ({}, {UUIDS[1]: X}, 2, f"a, b: {FEW}; GPU 1 is in use by X. Remedy: REMEDY"),
    (
        {"b": [0]},
        {UUIDS[1]: X},
        2,
        f"{FEW}, 1 of them assigned to other ranks; GPU 1 is in use by X",
    ),
]


@pytest.mark.parametrize(("wanted", "others", "count", "message"), IN_USE)
def test_gpus_of_others_are_refused(wanted: Any, others: Any, count: int, message: str) -> None:
    with pytest.raises(UserError) as raised:
        gang(WORKERS, wanted, count, instances=2, busy=others)
    assert message in str(raised.value)
    assert gang(WORKERS, {"b": [MIG[1]]}, 4, instances=2, busy={MIG[0]: busy("in use")})


def test_the_list_of_a_host_is_divided_among_its_ranks() -> None:
    ranks_of = {"b": "a"}
    shares = gang(THREE, {"a": [3, 1], "b": [3, 1]}, ranks_of=ranks_of)
    assert shares == {"a": ("3",), "b": ("1",), "c": ("0", "2")}
    with pytest.raises(UserError, match=r"^train_job_gpus of a lists 1 GPU for its 2 ranks"):
        gang(THREE, {"a": [3], "b": [3]}, ranks_of=ranks_of)
