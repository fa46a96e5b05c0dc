"""What the doctor examines on a host."""

from __future__ import annotations

import os

import pytest

from train.host import checkup

V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n"}, 0),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/memory.max": f"{300 << 20}\n",
                "/sys/fs/cgroup/a/b/memory.max": f"{500 << 20}\n",
            },
            300,
        ),
        # In a container, the path is the host's and the root the container's own.
        (
            {
                "/proc/self/cgroup": "4:memory:/docker/x\n1:cpu:/docker/x\n0::/\n",
                f"{V1}/memory.limit_in_bytes": f"{200 << 20}\n",
            },
            200,
        ),
        ({"/proc/self/cgroup": "4:memory:/\n", f"{V1}/memory.limit_in_bytes": f"{1 << 62}\n"}, 0),
    ],
)
def test_the_least_limit_of_memory_counts(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], limit: int
) -> None:
    monkeypatch.setattr(
        checkup, "read_text", lambda *parts: files.get(os.path.normpath(os.path.join(*parts)), "")
    )
    assert checkup._memory_limit(16_000) == limit
