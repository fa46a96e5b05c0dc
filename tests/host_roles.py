"""What the tests of the roles ``training_host``, ``clock_sync`` and ``firewall`` share."""

from __future__ import annotations

import importlib
from types import ModuleType

import ansible.module_utils

from tests.conftest import REPOSITORY

# As ansible.cfg has it.
for role in ("training_host", "clock_sync", "firewall"):
    ansible.module_utils.__path__.append(str(REPOSITORY / "roles" / role / "module_utils"))


def part(name: str) -> ModuleType:
    """A part of what modules of these roles are made of, such as ``host_setup.limits``."""
    return importlib.import_module(f"ansible.module_utils.{name}")


def module(role: str, name: str) -> ModuleType:
    """A module of one of these roles."""
    return importlib.import_module(f"roles.{role}.library.{name}")
