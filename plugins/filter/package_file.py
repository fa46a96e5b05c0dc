"""A filter for files of the package ``train``: ``{{ 'worker.py' | package_file }}``.

The package is next to the playbooks in a clone, and elsewhere if it was installed from a wheel.
"""

from __future__ import annotations

from collections.abc import Callable

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401

from train.gang import PACKAGE


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        """Return the filters by name."""
        return {"package_file": package_file}


def package_file(name: str) -> str:
    """Return the absolute path of a file of the package from its path within the package."""
    return str(PACKAGE / str(name))
