"""Removing what was brought, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict

from .places import STATE, noted


def remove_all(root: str, check_mode: bool) -> Dict[str, Any]:
    """Remove all files that were brought, by the notes of them; files of others stay."""
    state, left, changed = os.path.join(root, STATE), [], os.path.isdir(os.path.join(root, STATE))
    for note in sorted(os.listdir(state)) if changed and not check_mode else []:
        if not note.endswith(".json"):
            continue
        with open(os.path.join(state, note), encoding="utf-8") as stream:
            marker = json.load(stream)
        if not marker["new"]:  # mounted
            continue
        target = os.path.join(root, marker["dest"])
        for link in marker.get("links", []):
            if os.path.islink(link) and os.readlink(link).startswith(target + "/"):
                os.unlink(link)
        for path in noted(marker):
            if os.path.lexists(os.path.join(target, path)):
                os.unlink(os.path.join(target, path))
        if os.path.isdir(target):
            for current, _, _ in os.walk(target, topdown=False):
                if not os.listdir(current):
                    os.rmdir(current)
        if os.path.isdir(target):
            left.append(target)
    if changed and not check_mode:
        shutil.rmtree(state)
        if not os.listdir(root):
            os.rmdir(root)
    return {"changed": changed, "left": left}
