"""Writes JSON Schemas of a job's files into a folder, based on the records: ``make reference``.

docs/formats.md explains the fields.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from train.gang.doctor.doctor_records import Examined
from train.gang.job_records import Load, Manifest, RankEvent, ResultRecord
from train.host.progress_records import Progress
from train.host.records import RankSpec, RankState

#: The file, or the line in it, that each schema describes.
RECORDS = {
    "rank": RankSpec,
    "state": RankState,
    "progress": Progress,
    "manifest": Manifest,
    "result": ResultRecord,
    "event": RankEvent,
    "load": Load,
    "doctor": Examined,
}
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. The schema of a record rejects unknown fields."""
    if kind is Any:
        return {}
    if is_typeddict(kind):
        fields = {name: schema_of(field) for name, field in get_type_hints(kind).items()}
        return {
            "type": "object",
            "properties": fields,
            "required": sorted(kind.__required_keys__),
            "additionalProperties": False,
        }
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        either = [schema_of(part) for part in parts]
        if all(one.keys() == {"type"} for one in either):
            return {"type": [one["type"] for one in either]}
        return {"anyOf": either}
    if origin is list:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    return {"type": _TYPES[kind]}


def text_of(name: str) -> str:
    """Return the contents of a schema's file."""
    record = RECORDS[name]
    described = (record.__doc__ or "").partition("\n")[0].replace("``", "")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    schema = {**head, "description": described, **schema_of(record)}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for name in RECORDS:
        Path(sys.argv[1], f"{name}.json").write_text(text_of(name))
