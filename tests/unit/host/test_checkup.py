"""The facts that the doctor collects on a host."""

from __future__ import annotations

import os

import pytest

from train.host import checkup

V1 = "memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, 0),
        ("0::/a/b\n", {"a/memory.max": f"{300 << 20}\n", "a/b/memory.max": f"{5 << 30}\n"}, 300),
        # In a container, the path is the host's and the root the container's own.
        ("4:memory:/docker/x\n1:cpu:/docker/x\n0::/\n", {V1: f"{200 << 20}\n"}, 200),
        ("4:memory:/\n", {V1: f"{1 << 62}\n"}, 0),
    ],
)
def test_the_least_limit_of_memory_counts(
    monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], limit: int
) -> None:
    there = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    there["/proc/self/cgroup"] = groups
    monkeypatch.setattr(
        checkup, "read_text", lambda *parts: there.get(os.path.normpath(os.path.join(*parts)), "")
    )
    assert checkup._memory_limit(16_000) == limit
