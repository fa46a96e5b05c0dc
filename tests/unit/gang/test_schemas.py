"""The published schemas are those of the records; tests/integration checks real files by them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.support.job_folders import check
from train.gang import schemas


@pytest.mark.parametrize("name", schemas.RECORDS)
def test_what_is_published_is_what_the_records_are(name: str) -> None:
    published = (schemas.FOLDER / f"{name}.json").read_text()
    assert published == schemas.text_of(name), "python -m train.gang.schemas writes them again"


def test_no_other_schema_is_published() -> None:
    assert {path.stem for path in schemas.FOLDER.iterdir()} == set(schemas.RECORDS)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"version": 1, "culprit": "worker-1"}, "culprit"),
        ({"attempts": "2"}, "is not of type 'integer'"),
    ],
)
def test_what_no_record_has_is_refused(record: dict[str, Any], said: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=said):
        check("result", record)
