"""The environment variables of a rank."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from train.host import processes, rank_environment


def test_all_variables_of_the_launcher_are_expanded_in_arguments() -> None:
    values = [value for name, value in vars(rank_environment).items() if name.startswith("ENV_")]
    assert {value for value in values if value.startswith("TRAIN_")} == set(
        rank_environment.OWN_VARIABLES
    )
    assert len(values) == len(set(values)), "no two share a name"


LINKER = next(Path("/").glob("lib*/ld-linux*.so.*"), None)


@pytest.mark.skipif(
    LINKER is None or platform.libc_ver() < ("glibc", "2.35"), reason="needs glibc 2.35 or newer"
)
def test_glibc_knows_all_options_of_its_allocator() -> None:
    """It ignores unknown ones without a message."""
    options = dict(word.split("=") for word in rank_environment.MALLOC_OPTIONS.split(":"))
    environment = {**os.environ, rank_environment.ENV_MALLOC: rank_environment.MALLOC_OPTIONS}
    listed = processes.run([str(LINKER), "--list-tunables"], env=environment).stdout
    values = dict(line.split(" (")[0].split(": ") for line in listed.splitlines() if " (" in line)
    assert {name: int(values[name], 16) for name in options} == {
        name: int(value) for name, value in options.items()
    }
