"""A filter for commands that playbooks suggest: ``{{ 'run' | suggested_command }}``.

The commands match how this playbook was called; see train/host/suggested.py.
"""

from __future__ import annotations

from collections.abc import Callable

import ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.project  # noqa: F401

from train.gang import suggestions


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"suggested_command": suggested_command}


def suggested_command(name: str, **fields: str) -> str:
    """Return a suggested command, with ``fields`` filled in. See SUGGESTIONS for the names."""
    return suggestions.command(str(name), None, **{field: str(v) for field, v in fields.items()})
