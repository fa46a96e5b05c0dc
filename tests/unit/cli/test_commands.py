"""What commands print of a job."""

from __future__ import annotations

from typing import Any

import pytest

from train.cli.commands import receipt_line

RECEIPT = {"was": "running", "phase": "stopped", "remaining": [], "ended": 3, "port": 12345}


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        (
            {**RECEIPT, "port_free": True, "gpu_memory_free": True},
            "running -> stopped, 3 processes ended, 0 left, port 12345 free, GPU memory back",
        ),
        (
            {**RECEIPT, "port_free": None, "ended": 1, "remaining": [7]},
            "running -> stopped, 1 process ended, 1 left",
        ),
        ({**RECEIPT, "port_free": None, "was": "absent"}, "no rank of the job"),
    ],
)
def test_receipts(receipt: dict[str, Any], line: str) -> None:
    assert receipt_line(receipt) == line
