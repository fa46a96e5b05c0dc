"""Records of the doctor, in ``python -m train doctor --json`` and runs/doctor/."""

from __future__ import annotations

from typing import TypedDict

from train.host.checkup import Checkup
from train.host.links import Link


class Finding(TypedDict):
    """A problem of a host, a GPU or a network path."""

    severity: str  # FAIL, WARNING or INFO
    what: str  # a short name that is the same in every run, such as ``port-blocked``
    #: The host, ``A -> B`` for a path, or ``A <-> B`` for both of its directions. A GPU of a host
    #: is ``A GPU 0``.
    where: str
    found: str  # the measurement, in words
    expected: str  # a good value
    remedy: str  # the remedy; commands can be pasted


class Login(TypedDict):
    """Observations during a login to a host."""

    seconds: float  # duration of the login
    clock: float  # seconds by which the host's clock is ahead, +/- half of ``seconds``
    text: str  # text that the login itself printed


class Trained(TypedDict):
    """A short training run on some hosts: duration of a step and of its parts, in ms."""

    hosts: int
    step_ms: float
    compute_ms: float
    exchange_ms: float
    predicted_ms: float


class Scaling(TypedDict):
    """Measurements of scaling, and conclusions from them."""

    all_reduce_ms: dict[str, float]  # time of a sum over all hosts, by its millions of bytes
    latency_ms: float  # latency of one step of the ring
    rate_mb: float  # rate of the ring, in millions of bytes per second
    model: str  # the network of the short training runs
    parameters: int  # number of parameters of that network
    batch: int  # examples per host
    trained: list[Trained]  # in the order of the number of hosts
    #: Efficiency of all hosts together, by the number of parameters of a network that has the same
    #: batch and compute time.
    efficiency: dict[str, float]
    advice: list[str]  # possible improvements


class Examined(TypedDict):
    """All results, by inventory host."""

    at: float  # time of the examination
    parts: list[str]
    checkups: dict[str, Checkup]
    logins: dict[str, Login]
    links: dict[str, dict[str, Link]]
    unreachable: dict[str, str]  # why the login to a host failed
    remedies: dict[str, str]  # for unreachable hosts
    failed: dict[str, str]  # why a host was not examined, or measured no paths
    addresses: dict[str, str]  # the address at which the other hosts reach a host
    trains: list[str]  # the training hosts
    findings: list[Finding]
    scaling: Scaling | None  # None if not requested, or if a problem prevented it
