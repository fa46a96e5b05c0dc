"""The published schemas are those of the records; tests/integration checks real files by them."""

from __future__ import annotations

from train.gang import schemas


def test_what_is_published_is_what_the_records_are() -> None:
    published = {path.stem: path.read_text() for path in schemas.FOLDER.iterdir()}
    expected = {name: schemas.text_of(name) for name in schemas.RECORDS}
    assert published == expected, "python -m train.gang.schemas writes them again"
