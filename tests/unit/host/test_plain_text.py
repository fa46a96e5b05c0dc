"""Numbers in texts from scripts and hosts."""

from __future__ import annotations

import pytest

from train.host import gpus, plain_text, records


@pytest.mark.parametrize("text", ["²", "٣", "1²", "", "-1", "+1", "1_0", " 1", "1\n", "1.0"])
def test_what_is_no_number(text: str) -> None:
    assert not plain_text.is_number(text)
    assert records.task_order(f"worker-{text}") == records.task_order("worker-x")


def test_numbers() -> None:
    assert all(map(plain_text.is_number, ("0", "10", "007")))
    assert records.task_order("worker-10") > records.task_order("worker-9")
    # In the output of a program.
    assert not gpus._GPU.match("GPU ٣: NVIDIA H100 (UUID: GPU-a)")
