"""What a call on a host takes and returns, and what it fails with."""

from typing import Any, Dict, Mapping

#: The arguments of a call, each described at its function.
Params = Mapping[str, Any]
#: What it adds to the result of its task.
Result = Dict[str, Any]


class CallError(Exception):
    """What is wrong, and what helps; ``more`` are further values of the task's result."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more
