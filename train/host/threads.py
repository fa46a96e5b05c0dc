"""Queries many hosts or name servers in parallel, with a thread for each and a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Dict, Tuple, TypeVar

_T = TypeVar("_T")


def ask_all(
    names: Iterable[str], ask: Callable[[str], _T], seconds: float
) -> Tuple[Dict[str, _T], Dict[str, str]]:
    """Call ``ask`` for each of ``names`` in parallel; return the answers and the errors by name.

    A query that takes longer than ``seconds`` counts as an error. It continues in the background,
    and its answer is ignored.
    """
    answers: Dict[str, _T] = {}
    why = dict.fromkeys(names, "it did not answer within %g s" % seconds)

    def one(name: str) -> None:
        try:
            answers[name] = ask(name)
        except Exception as error:
            why[name] = str(error)

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in why]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    good = {name: answers[name] for name in why if name in answers}
    return good, {name: text for name, text in why.items() if name not in good}
