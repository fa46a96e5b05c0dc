"""Types of the parameters, results and errors of a call on a host."""

from typing import Any, Dict, Mapping

#: The arguments of a call, described in its function.
Params = Mapping[str, Any]
#: Values that the call adds to the result of its task.
CallResult = Dict[str, Any]


class CallError(Exception):
    """A problem and its remedy; ``more`` are further values of the task's result."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more
