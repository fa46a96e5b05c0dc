"""What must be the same in all ranks: options, data, and the user's files.

Different values would not be noticed otherwise: the ranks would wait for each other for ever, or
average the gradients of different tasks. This module uses only the standard library.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from .settings import ORDER, Settings

#: The options that may differ, because they are about a rank's own host, devices or files.
LOCAL = (
    *("data_dir", "download", "strategy", "devices", "memory_growth"),
    *("intra_op_threads", "inter_op_threads", "start_timeout"),
    *("checkpoint_dir", "checkpoints_kept", "model_dir", "export", "tensorboard_dir"),
)
#: Longer values are replaced by their hash.
MAX_VALUE = 64
#: Number of differences in a message.
SHOWN = 3


def terms(settings: Settings, examples: int, data_sha256: str) -> dict[str, str]:
    """Return what must be the same in all ranks, as short texts by description.

    ``examples`` is the number of training examples, and ``data_sha256`` the hash of the data.
    """
    found: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in LOCAL:
            continue
        name = f"--{field.name.replace('_', '-')}"
        if field.name in ("data", "model") and value.endswith(".py"):
            # The hosts may have it in different folders.
            path = Path(value)
            value = path.name
            found[f"SHA-256 of {value}"] = hashlib.sha256(path.read_bytes()).hexdigest()
        listed = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if len(listed) > MAX_VALUE:
            listed = f"of SHA-256 {hashlib.sha256(listed.encode()).hexdigest()[:16]}"
        found[name] = listed
    found["number of training examples"] = str(examples)
    found["SHA-256 of the data"] = data_sha256
    found["version of the examples' order"] = str(ORDER)
    return found


def disagreement(ranks: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    """Return in one line which ranks differ from the first one, and in what; '' if none does.

    ``rows`` are the ``terms`` of all ``ranks``.
    """
    first = rows[0]
    differing = [rank for rank, row in zip(ranks, rows, strict=True) if row != first]
    if not differing:
        return ""
    row = rows[ranks.index(differing[0])]
    differences = [
        f"{name} {row.get(name) or 'none'}, not {first.get(name) or 'none'}"
        for name in dict.fromkeys([*first, *row])
        if row.get(name) != first.get(name)
    ]
    if len(differences) > SHOWN:
        differences[SHOWN:] = [f"and {len(differences) - SHOWN} more"]
    others = f" (as do {', '.join(differing[1:])})" if differing[1:] else ""
    return (
        f"{differing[0]} differs from {ranks[0]}{others}: {'; '.join(differences)}: all ranks need "
        "the same options and data"
    )
