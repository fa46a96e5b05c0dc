"""The wheelhouse of the SSH hosts."""

from __future__ import annotations

from tests.testbed.wheelhouse import requirements

LOCK = """\
# made by a tool
a==1 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via b
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:bb
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
"""


def test_conditions_are_judged_for_the_hosts_python() -> None:
    assert requirements(LOCK).splitlines() == [
        "a==1 --hash=sha256:aa --hash=sha256:ab",
        "numpy==2.4 --hash=sha256:bb",
    ]
