"""Parameters, results and errors of a call on a host, and calls for several ranks."""

from typing import Any, Callable, Dict, Mapping

#: The arguments of a call, described in its function.
Params = Mapping[str, Any]
#: Values that the call adds to the result of its task.
CallResult = Dict[str, Any]


class CallError(Exception):
    """A problem and its remedy; ``more`` are further values of the task's result."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more


def for_each_rank(
    params: Params, call: Callable[[Params], CallResult], at_once: bool = False
) -> CallResult:
    """Make a call for several ranks of this host, one after the other or all ``at_once``.

    Return ``hosts``: the result for each rank by its inventory host. If a call fails, its result
    has ``failed`` and the reason as ``msg``, and the others are made anyway.

    Args:
        params: parameters that the ranks share; ``hosts``, the other parameters of each rank by
            its inventory host.
    """
    shared = {name: value for name, value in params.items() if name != "hosts"}

    def result_of(host: str) -> CallResult:
        try:
            return call({**shared, **params["hosts"][host], "host": host})
        except CallError as error:
            return {**error.more, "failed": True, "msg": str(error)}
        except Exception as error:  # an error of one rank must not affect the others
            return {"failed": True, "msg": "unexpected error: %r" % error}

    hosts = list(params["hosts"])
    if not at_once or len(hosts) < 2:
        return {"hosts": {host: result_of(host) for host in hosts}}
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(len(hosts)) as pool:
        return {"hosts": dict(zip(hosts, pool.map(result_of, hosts)))}
