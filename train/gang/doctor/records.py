"""What the doctor finds: the records of ``python -m train doctor --json`` and of runs/doctor/."""

from __future__ import annotations

from typing import TypedDict

from train.host.checkup import Checkup
from train.host.links import Link


class Finding(TypedDict):
    """Something that is wrong."""

    severity: str  # FAIL, WARNING or INFO
    what: str  # a short name that stays the same from run to run, such as ``port-blocked``
    #: The host, or ``A -> B`` for a path, ``A <-> B`` for both of its directions; a GPU of a host
    #: is ``A GPU 0``.
    where: str
    found: str  # what was measured, in words
    expected: str  # what would be good
    remedy: str  # what helps; where it is a command, one to paste


class Login(TypedDict):
    """What a login to a host was like."""

    seconds: float  # how long it took
    clock: float  # how far the host's is ahead, s; give or take half of ``seconds``
    text: str  # what the login printed by itself


class Trained(TypedDict):
    """A short training on some hosts: ms of a step, and of its parts that are measured."""

    hosts: int
    step_ms: float
    compute_ms: float
    exchange_ms: float
    predicted_ms: float


class Scaling(TypedDict):
    """What was measured, and what follows from it."""

    all_reduce_ms: dict[str, float]  # of a sum over all hosts, by millions of bytes
    latency_ms: float  # of a step of a ring
    rate_mb: float  # of the ring, in millions of bytes a second
    model: str  # the network of the short trainings
    parameters: int  # that it has
    batch: int  # of a host
    trained: list[Trained]  # by number of hosts
    #: Of all hosts together, by parameters of the network, with that batch and time of computing.
    efficiency: dict[str, float]
    advice: list[str]  # what would help


class Examined(TypedDict):
    """All that was found, by inventory host."""

    at: float  # when
    parts: list[str]
    checkups: dict[str, Checkup]
    logins: dict[str, Login]
    links: dict[str, dict[str, Link]]
    unreachable: dict[str, str]  # why a host could not be logged in to
    remedies: dict[str, str]  # what helps against that
    failed: dict[str, str]  # why a host could not be examined, or measured no paths
    addresses: dict[str, str]  # what the others call a host
    trains: list[str]  # the hosts that train
    findings: list[Finding]
    scaling: Scaling | None  # None where it was not asked for, or something was in the way
