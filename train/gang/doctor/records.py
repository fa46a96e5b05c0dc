"""What the doctor finds: the records of ``python -m train doctor --json`` and of runs/doctor/."""

from __future__ import annotations

from typing import TypedDict

from train.host.checkup import Checkup
from train.host.links import Link


class Finding(TypedDict):
    """Something that is wrong.

    Attributes:
        severity: FAIL, WARNING or INFO.
        what: a short name that stays the same from run to run, such as ``port-blocked``.
        where: the host, or ``A -> B`` for a path, ``A <-> B`` for both of its directions; a GPU
            of a host is ``A GPU 0``.
        found: what was measured, in words.
        expected: what would be good.
        remedy: what helps; where it is a command, one to paste.
    """

    severity: str
    what: str
    where: str
    found: str
    expected: str
    remedy: str


class Login(TypedDict):
    """What a login to a host was like.

    Attributes:
        seconds: how long it took.
        clock: how far the host's is ahead of this one's, s; give or take half of the seconds.
        text: what the login printed by itself.
    """

    seconds: float
    clock: float
    text: str


class Trained(TypedDict):
    """A short training on some hosts: ms of a step, and of its parts that are measured."""

    hosts: int
    step_ms: float
    compute_ms: float
    exchange_ms: float
    predicted_ms: float


class Scaling(TypedDict):
    """What was measured, and what follows from it.

    Attributes:
        all_reduce_ms: of a sum over all hosts, by millions of bytes.
        latency_ms: of a step of a ring, and its ``rate_mb`` in millions of bytes a second.
        model: the network of the short trainings, its ``parameters``, and the ``batch`` of a host.
        trained: by number of hosts.
        efficiency: of all hosts together, by parameters of the network, with that batch and time
            of computing.
        advice: what would help.
    """

    all_reduce_ms: dict[str, float]
    latency_ms: float
    rate_mb: float
    model: str
    parameters: int
    batch: int
    trained: list[Trained]
    efficiency: dict[str, float]
    advice: list[str]


class Examined(TypedDict):
    """All that was found, by inventory host.

    Attributes:
        at: when.
        unreachable: why a host could not be logged in to.
        failed: why a host could not be examined, or measured no paths.
        addresses: what the others call a host.
        trains: the hosts that train.
        scaling: None where it was not asked for, or something was in the way.
    """

    at: float
    parts: list[str]
    checkups: dict[str, Checkup]
    logins: dict[str, Login]
    links: dict[str, dict[str, Link]]
    unreachable: dict[str, str]
    failed: dict[str, str]
    addresses: dict[str, str]
    trains: list[str]
    findings: list[Finding]
    scaling: Scaling | None
