"""Updates for several viewers, computed once for all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from train.cli.dashboard.topics import PROBLEM, Topic


async def following(events: AsyncIterator[bytes]) -> dict[str, Any]:
    """Return the parts in the next event."""
    async with asyncio.timeout(5):
        event = await anext(events)
    found: dict[str, Any] = json.loads(event.decode().removeprefix("data: "))
    return found


def test_viewers_share_the_work_and_get_what_has_changed() -> None:
    calls: list[int] = []

    def compute() -> dict[str, object]:
        calls.append(1)
        return {"fixed": "<p>", "count": len(calls)}

    async def watch() -> None:
        topic = Topic(compute, 0.02)
        first, second = topic.events(), topic.events()
        assert await following(first) == {"fixed": "<p>", "count": 1, PROBLEM: ""}
        seen = await following(second)
        assert seen["fixed"] == "<p>"
        assert set(await following(first)) == {"count"}
        assert topic.viewers == 2
        await first.aclose()  # type: ignore[attr-defined]
        await second.aclose()  # type: ignore[attr-defined]
        assert topic.viewers == 0
        await asyncio.sleep(0.1)
        done = len(calls)
        await asyncio.sleep(0.1)
        assert len(calls) == done, "it computes although it has no viewers"
        again = topic.events()
        assert "fixed" in await following(again), "a new viewer gets all parts"
        await again.aclose()  # type: ignore[attr-defined]

    asyncio.run(watch())


def test_an_error_is_shown_and_does_not_end_the_updates() -> None:
    calls: list[int] = []

    def compute() -> dict[str, object]:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("not a number")
        return {"count": len(calls)}

    async def watch() -> None:
        events = Topic(compute, 0.02).events()
        assert (await following(events))["count"] == 1
        problem = await following(events)
        assert "ValueError: not a number" in problem[PROBLEM]
        assert await following(events) == {"count": 3, PROBLEM: ""}
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(watch())
