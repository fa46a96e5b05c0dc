"""Loads the plugins of roles for the tests of all of them."""

from __future__ import annotations

import importlib
from types import ModuleType

import ansible.module_utils

from tests.support.lab import REPOSITORY

# As ansible.cfg has it.
for folder in sorted(REPOSITORY.glob("roles/*/module_utils")):
    ansible.module_utils.__path__.append(str(folder))


def part(name: str) -> ModuleType:
    """A part of what modules of the roles are made of, such as ``firewall_setup.rules``."""
    return importlib.import_module(f"ansible.module_utils.{name}")


def load(name: str) -> ModuleType:
    """A module or filters of a role, such as ``tensorflow.library.tensorflow_venv``."""
    return importlib.import_module(f"roles.{name}")
