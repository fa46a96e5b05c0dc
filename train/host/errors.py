"""What a call on a host fails with."""

from typing import Any


class CallError(Exception):
    """What is wrong, and what helps; ``more`` are further values of the task's result."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more
