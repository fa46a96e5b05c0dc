"""Which driver goes with which GPU, and with what the user and TensorFlow want."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple

from .versions import numbers

#: The first PCI device numbers of two generations. NVIDIA's open kernel module drives Turing and
#: newer ones, and Blackwell and newer ones are driven by no other.
TURING, BLACKWELL = 0x1E00, 0x2900
#: The last branch for what came before Turing, the first for Blackwell, and the first in which the
#: open kernel module is the one that NVIDIA recommends.
LAST_BEFORE_TURING, FIRST_FOR_BLACKWELL, FIRST_OPEN = 580, 570, 560

#: Returns, for names of packages, the candidate versions of those that can be installed.
Candidates = Callable[[List[str]], Dict[str, str]]


class PackageError(Exception):
    """Nothing fits this host; the message says why and what to do."""


class Wanted(NamedTuple):
    """What the user and TensorFlow want."""

    minimum: str
    source: str
    flavour: str
    branch: str


class Choice(NamedTuple):
    """What to install."""

    packages: List[str]
    version: str
    #: built on the host by DKMS; else it comes compiled
    built: bool
    stream: str = ""


def device_ids(gpus: List[Dict[str, Any]]) -> List[int]:
    """Return the PCI device numbers of GPUs."""
    return [int(gpu["device_id"], 16) for gpu in gpus]


def is_open(wanted: Wanted, devices: List[int], major: int) -> bool:
    """Whether to take the open kernel module.

    Raises:
        PackageError: the one that was asked for does not drive these GPUs.
    """
    old = ["%04x" % device for device in devices if device < TURING]
    new = ["%04x" % device for device in devices if device >= BLACKWELL]
    if old and new:
        raise PackageError(
            "No one driver drives all GPUs: 10de:%s need the proprietary kernel module, 10de:%s the"
            " open one." % (", 10de:".join(old), ", 10de:".join(new))
        )
    if wanted.flavour == "open" and old:
        raise PackageError(
            "The open kernel module does not drive the GPUs 10de:%s, which are older than Turing."
            " Set nvidia_driver_flavour to proprietary." % ", 10de:".join(old)
        )
    if wanted.flavour == "proprietary" and new:
        raise PackageError(
            "The proprietary kernel module does not drive the GPUs 10de:%s, which are Blackwell or"
            " newer. Set nvidia_driver_flavour to open." % ", 10de:".join(new)
        )
    if wanted.flavour != "auto":
        return wanted.flavour == "open"
    return bool(new) or (not old and major >= FIRST_OPEN)


def check_version(wanted: Wanted, devices: List[int], version: str) -> None:
    """Refuse a driver that is too old for TensorFlow or a GPU, or too new for a GPU.

    Raises:
        PackageError: it is.
    """
    remedy = " Set nvidia_driver_source to nvidia, or choose another nvidia_driver_branch."
    if numbers(version) < numbers(wanted.minimum):
        raise PackageError(
            "The %s offers driver %s; TensorFlow needs %s or newer.%s"
            % (archive(wanted), version, wanted.minimum, remedy)
        )
    major = numbers(version)[0]
    for device in devices:
        if device >= BLACKWELL and major < FIRST_FOR_BLACKWELL:
            raise PackageError(
                "The %s offers driver %s; the GPU 10de:%04x needs %d or newer.%s"
                % (archive(wanted), version, device, FIRST_FOR_BLACKWELL, remedy)
            )
        if device < TURING and major > LAST_BEFORE_TURING:
            raise PackageError(
                "Driver %s no longer drives the GPU 10de:%04x; the last branch that does is %d."
                " Set nvidia_driver_branch to %d."
                % (version, device, LAST_BEFORE_TURING, LAST_BEFORE_TURING)
            )


def archive(wanted: Wanted) -> str:
    """Return what messages call the packages' source."""
    return "distribution" if wanted.source == "distribution" else "NVIDIA repository"


def none_offered(wanted: Wanted, what: str) -> PackageError:
    """Return the error for packages that the lists do not have."""
    return PackageError(
        "The %s offers no %s. Look whether its package lists could be fetched, or choose another"
        " nvidia_driver_source or nvidia_driver_branch." % (archive(wanted), what)
    )
