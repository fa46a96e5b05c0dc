"""Loads the plugins of roles, as Ansible does, for the tests of all of them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import ansible.module_utils

from tests.support.lab import REPOSITORY

# As ansible.cfg has it.
for folder in sorted(REPOSITORY.glob("roles/*/module_utils")):
    ansible.module_utils.__path__.append(str(folder))


def part(name: str) -> ModuleType:
    """A part of what modules of the roles are made of, such as ``firewall_setup.rules``."""
    return importlib.import_module(f"ansible.module_utils.{name}")


def load(path: Path) -> ModuleType:
    """Load a plugin from its file, under a name of its own."""
    name = f"role_{path.parents[1].name}_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
