"""Sends updates of a page to all of its viewers as server-sent events, computed once for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping

#: The parts of a page by name: HTML, or values for its scripts.
Parts = Mapping[str, object]
#: The part with the reason why the others could not be computed, or an empty text.
PROBLEM = "problem"
#: Seconds after which a line is sent, so that lost viewers are noticed.
_HEARTBEAT_S = 10.0


class Topic:
    """The parts of a page, computed again at intervals while it has viewers.

    Args:
        compute: returns the parts. It runs in a thread.
        interval: seconds between two computations.
    """

    def __init__(self, compute: Callable[[], Parts], interval: float) -> None:
        self._compute, self._interval = compute, interval
        self._parts: dict[str, str] = {}  # as JSON
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        """The number of viewers."""
        return self._viewers

    async def events(self) -> AsyncIterator[bytes]:
        """Yield an event with all parts, and then one with the changed parts at each change."""
        self._viewers += 1
        sent: dict[str, int] = {}
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work())
            while True:
                changed = [name for name, at in self._versions.items() if sent.get(name) != at]
                if changed:
                    sent.update((name, self._versions[name]) for name in changed)
                    fields = (f"{json.dumps(name)}: {self._parts[name]}" for name in changed)
                    yield f"data: {{{', '.join(fields)}}}\n\n".encode()
                    continue
                try:
                    async with asyncio.timeout(_HEARTBEAT_S), self._changed:
                        await self._changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._viewers -= 1

    async def _work(self) -> None:
        """Compute the parts until there are no viewers."""
        while self._viewers:
            try:
                parts = {**await asyncio.to_thread(self._compute), PROBLEM: ""}
            except Exception as error:  # from files that hosts have filled; the page stays
                parts = {
                    PROBLEM: f"this page could not be updated: {type(error).__name__}: {error}"
                }
            async with self._changed:
                for name, value in parts.items():
                    text = json.dumps(value)
                    if self._parts.get(name) != text:
                        self._parts[name] = text
                        self._versions[name] = self._versions.get(name, 0) + 1
                self._changed.notify_all()
            await asyncio.sleep(self._interval)
