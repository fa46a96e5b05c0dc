"""The published schemas are those of the records; tests/integration checks real files by them."""

from __future__ import annotations

import jsonschema
import pytest

from tests.support.job_folders import check
from train.gang import schemas


def test_what_is_published_is_what_the_records_are() -> None:
    published = {path.stem: path.read_text() for path in schemas.FOLDER.iterdir()}
    expected = {name: schemas.text_of(name) for name in schemas.RECORDS}
    assert published == expected, "python -m train.gang.schemas writes them again"


def test_what_no_record_has_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="culprit"):
        check("result", {"version": 1, "culprit": "worker-1"})
    with pytest.raises(jsonschema.ValidationError, match="is not of type 'integer'"):
        check("result", {"attempts": "2"})
