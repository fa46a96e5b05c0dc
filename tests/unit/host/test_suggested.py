"""Markers for suggested commands: what they may contain."""

from __future__ import annotations

import re

import pytest

from train.host import suggested


@pytest.mark.parametrize("name", suggested.SUGGESTIONS)
def test_every_field_has_a_pattern(name: str) -> None:
    fields = re.findall(r"\{(\w+)\}", suggested.SUGGESTIONS[name].usage)
    assert set(fields) <= set(suggested.FIELDS)


def test_a_marker_keeps_its_fields_whatever_they_contain() -> None:
    folder = "/data/a b <c> 100% é=x"
    marker = suggested.suggest("disk-use", on="node-1", folder=folder)
    found = suggested.MARKER.fullmatch(marker)
    assert found is not None
    assert found["name"] == "disk-use"
    assert suggested.fields_of(found) == {"on": "node-1", "folder": folder}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("reboot", {}, "no command 'reboot' is registered"),
        ("list", {"job": "night-1"}, "list has no field job"),
        ("list", {"on": "node-1"}, "list has no field on"),
        ("stop", {"job": "../x"}, "'../x' is not usable as job of stop"),
        ("kill", {"pids": "1;reboot"}, "'1;reboot' is not usable as pids of kill"),
        ("setup", {"hosts": "--become"}, "'--become' is not usable as hosts of setup"),
        ("disk-use", {"folder": "a\n/b"}, "'a\\n/b' is not usable as folder of disk-use"),
    ],
)
def test_a_mistake_in_a_marker_is_named(name: str, fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        suggested.suggest(name, **fields)
