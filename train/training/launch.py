"""What the launcher tells a rank of its job, by the environment. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from host.records import ENV_ATTEMPT, ENV_CHECKPOINT_COPY, ENV_JOB

from .cluster import ConfigError


@dataclass(frozen=True)
class Launch:
    """The job that this process is a rank of.

    Attributes:
        job: its id; empty without the launcher.
        attempt: which start of the gang this is, from 1. Options are the same in all attempts.
        copies: whether this rank keeps a copy of the chief's checkpoints.
    """

    job: str = ""
    attempt: int = 1
    copies: bool = False


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Return what ``environ`` says of the job; variables that are not set say the default.

    Raises:
        ConfigError: a variable has a value that it cannot have; it names it.
    """
    attempt = environ.get(ENV_ATTEMPT) or "1"
    if not (attempt.isascii() and attempt.isdigit() and 1 <= int(attempt) <= 1_000_000):
        raise ConfigError(
            f"environment variable {ENV_ATTEMPT}: {attempt!r} is not a whole number from 1 to "
            "1000000"
        )
    copies = environ.get(ENV_CHECKPOINT_COPY) or "0"
    if copies not in ("0", "1"):
        raise ConfigError(f"environment variable {ENV_CHECKPOINT_COPY}: {copies!r} is not 0 or 1")
    return Launch(environ.get(ENV_JOB, ""), int(attempt), copies == "1")
